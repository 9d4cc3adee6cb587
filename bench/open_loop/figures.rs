//! What a run has brought: histograms, their table and their JSON.
//!
//! Not here: clocks, sockets.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

use crate::load::Plan;

/// The percentiles told, with their names.
const TOLD: [(&str, f64); 6] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("p99.99", 99.99),
    ("max", 100.0),
];

/// Above this the generator itself was late, and the figures tell of it as much as of the target.
const LAG_P99_NS: u64 = 1_000_000;

/// Nanoseconds throughout.
pub struct Figures {
    /// From the intended moment to the reply.
    pub latency: Histogram<u64>,
    /// From the intended moment to the writing: what the generator is late by itself.
    pub lag: Histogram<u64>,
    /// All replies, those to the warm-up included: what CPU time is to be divided by.
    pub replies: u64,
    pub errors: u64,
    pub unanswered: u64,
    /// The first error reply.
    pub first_error: Option<String>,
    /// From the first measured command to the last reply.
    pub measured_ns: u64,
}

impl Figures {
    pub fn new() -> Figures {
        Figures {
            latency: histogram(),
            lag: histogram(),
            replies: 0,
            errors: 0,
            unanswered: 0,
            first_error: None,
            measured_ns: 0,
        }
    }

    pub fn add(&mut self, other: Figures) {
        // Both have the same bounds.
        self.latency.add(&other.latency).unwrap_or_default();
        self.lag.add(&other.lag).unwrap_or_default();
        self.replies += other.replies;
        self.errors += other.errors;
        self.unanswered += other.unanswered;
        self.first_error = self.first_error.take().or(other.first_error);
        self.measured_ns = self.measured_ns.max(other.measured_ns);
    }

    /// Whether every command had an answer that is no error.
    pub fn is_sound(&self) -> bool {
        self.errors == 0 && self.unanswered == 0 && !self.latency.is_empty()
    }

    pub fn rate(&self) -> f64 {
        self.latency.len() as f64 * 1e9 / self.measured_ns.max(1) as f64
    }

    pub fn table(&self, plan: &Plan) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{} commands answered, {:.0}/s of {}/s asked, {} connections, {} arrivals",
            self.latency.len(),
            self.rate(),
            plan.rate,
            plan.connections,
            if plan.poisson { "poisson" } else { "fixed" }
        );
        for (title, histogram) in [("latency", &self.latency), ("sent late", &self.lag)] {
            let _ = write!(out, "{title:<10}");
            for (name, value) in percentiles(histogram) {
                let _ = write!(out, "  {name} {value:.3}");
            }
            out.push_str(" ms\n");
        }
        if self.lag.value_at_percentile(99.0) > LAG_P99_NS {
            out.push_str(
                "WARNING: this program itself sent late: give it CPUs of its own, --threads, or a lower \
                 --rate\n",
            );
        }
        if self.unanswered > 0 {
            let _ = writeln!(out, "WARNING: {} commands had no answer", self.unanswered);
        }
        if let Some(text) = &self.first_error {
            let _ = writeln!(out, "WARNING: {} errors, the first: {text}", self.errors);
        }
        out
    }

    /// Numbers and fixed names only: nothing to escape.
    pub fn json(&self, plan: &Plan) -> String {
        let members = |histogram: &Histogram<u64>| {
            let mut all = vec![format!("\"mean\": {:.6}", histogram.mean() / 1e6)];
            all.extend(
                percentiles(histogram).map(|(name, value)| format!("\"{name}\": {value:.6}")),
            );
            all.join(", ")
        };
        format!(
            "{{\"rate_asked\": {}, \"rate_done\": {:.3}, \"commands\": {}, \"commands_and_warmup\": {}, \"errors\": {}, \"unanswered\": {}, \
             \"connections\": {}, \"threads\": {}, \"poisson\": {}, \"set_share\": {}, \"size\": {}, \
             \"keys\": {}, \"seconds\": {}, \"latency_ms\": {{{}}}, \"lag_ms\": {{{}}}}}\n",
            plan.rate,
            self.rate(),
            self.latency.len(),
            self.replies,
            self.errors,
            self.unanswered,
            plan.connections,
            plan.threads,
            plan.poisson,
            plan.set_share,
            plan.size,
            plan.keys,
            plan.measured.as_secs_f64(),
            members(&self.latency),
            members(&self.lag),
        )
    }
}

/// One nanosecond to an hour, three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are legal")
}

/// Name and milliseconds.
fn percentiles(histogram: &Histogram<u64>) -> impl Iterator<Item = (&'static str, f64)> {
    TOLD.into_iter().map(|(name, at)| (name, histogram.value_at_percentile(at) as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(latencies_ms: impl IntoIterator<Item = u64>) -> Figures {
        let mut figures = Figures::new();
        for ms in latencies_ms {
            figures.latency.record(ms * 1_000_000).unwrap();
            figures.lag.record(1_000).unwrap();
        }
        figures.measured_ns = 1_000_000_000;
        figures
    }

    #[test]
    fn percentiles_and_rate_are_those_of_all_threads() {
        let mut both = figures(1..=50);
        both.add(figures(51..=100));
        assert_eq!(both.rate(), 100.0);
        let told: Vec<u64> =
            percentiles(&both.latency).map(|(_, value)| value.round() as u64).collect();
        assert_eq!(told, [50, 90, 99, 100, 100, 100]);
        assert!(both.is_sound());
        assert!(!both.table(&Plan::default()).contains("WARNING"));
    }

    #[test]
    fn what_spoils_a_run_is_said() {
        let mut spoilt = figures([1]);
        spoilt.lag.record(2_000_000).unwrap();
        spoilt.add(Figures {
            errors: 2,
            unanswered: 3,
            first_error: Some("-ERR x".into()),
            ..Figures::new()
        });
        let table = spoilt.table(&Plan::default());
        for part in ["sent late: give", "3 commands had no answer", "2 errors, the first: -ERR x"] {
            assert!(table.contains(part), "{table}");
        }
        assert!(!spoilt.is_sound() && !Figures::new().is_sound());
    }

    #[test]
    fn json_has_every_figure() {
        let text = figures([1, 2]).json(&Plan::default());
        for part in
            ["\"rate_done\": 2.000", "\"p99.9\": ", "\"lag_ms\": {\"mean\"", "\"commands\": 2"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
