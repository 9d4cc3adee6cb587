//! What a seed draws before its run begins: sizes, speeds, which faults there are and how many, the
//! proxy's settings (swarm testing: each seed leaves most faults out). Not here: the run.

use ringway::proxy::Settings;
use ringway::secret::Secret;

use crate::random::Random;

/// Chances are per mille; times as named; 0 turns a thing off.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    pub seed: u64,
    /// Only faults that a proxy can hide: then no request may fail.
    pub calm: bool,
    pub primaries: usize,
    pub replicas: usize,
    pub spares: usize,
    pub nat: bool,
    pub slotted: bool,
    pub tags: usize,
    pub clients: usize,
    pub requests: u64,
    pub pipeline: u64,
    pub keys: u64,
    pub think_us: u64,
    pub starts_us: u64,

    pub delay_us: u64,
    pub turn_us: u64,
    pub serve_us: u64,
    pub slices: u32,
    pub late_sent: u32,
    pub late_sent_us: u64,
    pub late_gone_us: u64,
    pub shuffle: bool,

    pub migration_ms: u64,
    pub migration_step_us: u64,
    pub migration_abort: u32,
    pub gossip_us: u64,
    pub map_us: u64,
    pub map_first_us: u64,
    pub refresh_ms: u64,

    pub cut_ms: u64,
    pub black_hole_ms: u64,
    pub stall_ms: u64,
    pub crash_ms: u64,
    pub failover_ms: u64,
    /// Nodes lose their scripts.
    pub script_flush_ms: u64,
    /// Memory runs short.
    pub memory_ms: u64,
    /// Another process takes over.
    pub handover_ms: u64,
    /// Clients enter another database.
    pub selects: u32,
    /// How late replicas are.
    pub lag_us: u64,
    /// How often nodes sync their files.
    pub sync_us: u64,
    pub loading_ms: u64,
    pub down_ms: u64,
    pub moves_ms: u64,
    pub moody: u32,
    pub greeting: u32,
    pub connect_refused: u32,
    pub connect_hangs: u32,
    pub connect_fails_at_once: u32,
    pub stray_frames: u32,
    /// A connection ends in the middle of what a node says, at any byte.
    pub cut_in_reply: u32,

    pub leaves: u32,
    /// Who leaves is followed by another.
    pub successors: u32,
    pub half_closes: u32,
    pub never_reads: u32,
    pub slow_reads: u32,
    pub resp3: u32,
    pub large: u32,
    pub hostile: u32,
    pub password: bool,
    /// Clients must log in.
    pub login: bool,
    /// The proxy stands still for so long now and then: in how many of 10,000 events.
    pub hiccups: u32,
    pub hiccup_ms: u64,
    /// What the clock says at the start.
    pub clock_ms: u64,
    pub forget_ms: u64,
    /// The run ends by a drain rather than by clients that leave.
    pub drains: bool,
    pub weights: [u32; KINDS],

    pub chaos_ms: u64,
    /// Clients that listen; half as many publish.
    pub ears: u64,
    /// Clients that watch what others ask.
    pub watchers: u64,
    pub proxy: Knobs,
}

/// Kinds of requests that are weighted (`workload::draw_kind`), and the place of SCAN among them.
pub const KINDS: usize = 32;
pub const SCAN: usize = 24;

/// The proxy's settings that are drawn.
#[derive(Clone, Debug, Default)]
pub struct Knobs {
    pub clients_max: u32,
    pub client_requests_max: u32,
    pub client_output_soft: usize,
    pub client_output_limit: usize,
    pub client_query_limit: usize,
    pub client_stall_ms: u64,
    pub request_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    pub fence_lanes: usize,
    pub private_backends_max: usize,
    pub split: bool,
    /// Keys from which on a slot is walked in pieces.
    pub walk_whole_max: u32,
    /// Bytes that may wait for who watches by MONITOR, and for who listens.
    pub line_limit: usize,
}

impl Parameters {
    pub fn draw(seed: u64) -> Parameters {
        let mut random = Random::new(seed);
        let r = &mut random;
        let calm = r.chance(300);
        let mut drawn = Parameters::sizes(seed, calm, r);
        drawn.draw_network(r);
        drawn.draw_cluster(r);
        if !calm {
            drawn.draw_faults(r);
        }
        drawn.draw_habits(r);
        drawn.draw_proxy(r);
        drawn.script_flush_ms = mean_or_never(r, 400, 5..=500);
        drawn.lag_us = r.skewed(300_000);
        drawn.ears = if r.chance(400) { 1 + r.skewed(5) } else { 0 };
        drawn.memory_ms = mean_or_never(r, 400, 5..=500);
        drawn.handover_ms = mean_or_never(r, 350, 20..=1_500);
        drawn.selects = sometimes(r, 300, 20..=400);
        drawn.sync_us = 1 + r.skewed(400_000);
        drawn.watchers = if r.chance(200) { r.range(1..=2) } else { 0 };
        // Who listens is closed at the same limit.
        if drawn.watchers > 0 && r.chance(700) {
            (drawn.ears, drawn.proxy.line_limit) = (0, 400 + r.skewed(6_000) as usize);
        }
        drawn
    }

    /// The same with small windows and limits, and everything that may happen happening all the time.
    pub fn draw_pressed(seed: u64) -> Parameters {
        let mut drawn = Parameters::draw(seed);
        // Other chances than those that were drawn before.
        let r = &mut Random::new(!seed);
        drawn.press(r);
        if !drawn.calm {
            drawn.press_faults(r);
        }
        drawn
    }

    fn press(&mut self, r: &mut Random) {
        self.slices = r.pick(&[0, 1_000]);
        self.late_sent = r.pick(&[300, 1_000]);
        self.shuffle = true;
        self.requests = self.requests.min(60);
        self.pipeline = 1 + r.skewed(63);
        (self.keys, self.tags) = (1, 1 + r.skewed(3) as usize);
        self.leaves = self.leaves.max(300);
        self.half_closes = self.half_closes.max(100);
        self.resp3 = 500;
        self.large = r.pick(&[0, 300]);
        self.migration_ms = r.range(1..=10);
        self.migration_step_us = r.range(1..=3_000);
        self.forget_ms = r.range(20..=200);
        self.failover_ms = r.range(20..=200);
        self.script_flush_ms = r.range(1..=50);
        self.memory_ms = r.pick(&[0, 3]);
        self.ears = if self.lines_are_many() { 0 } else { r.range(0..=4) };
        self.proxy.client_requests_max = r.range(1..=8) as u32;
        self.proxy.fence_lanes = 1;
    }

    fn press_faults(&mut self, r: &mut Random) {
        self.cut_ms = r.range(1..=20);
        self.cut_in_reply = r.range(1..=60) as u32;
        self.moody = r.range(100..=500) as u32;
        self.greeting = r.range(0..=200) as u32;
        self.connect_refused = r.range(0..=200) as u32;
        self.connect_fails_at_once = r.range(0..=200) as u32;
        self.loading_ms = r.range(50..=300);
        (self.slow_reads, self.never_reads) = (200, 100);
        self.hostile = r.range(0..=1000) as u32;
        let knobs = &mut self.proxy;
        knobs.client_output_soft = r.range(1..=300) as usize;
        knobs.client_output_limit = 20_000;
        knobs.client_query_limit = 300_000;
        knobs.private_backends_max = 1;
        knobs.request_timeout_ms = 200;
    }

    fn sizes(seed: u64, calm: bool, r: &mut Random) -> Parameters {
        let slow_time = r.chance(300);
        Parameters {
            seed,
            calm,
            primaries: r.range(1..=4) as usize,
            replicas: r.range(0..=1) as usize,
            spares: r.skewed(2) as usize,
            tags: 1 + r.skewed(15) as usize,
            clients: 1 + r.skewed(11) as usize,
            requests: 4 + r.skewed(250),
            pipeline: 1 + r.skewed(63),
            keys: 1 + r.skewed(5),
            think_us: if slow_time { r.range(1_000..=60_000) } else { r.range(0..=2_000) },
            starts_us: r.skewed(400_000),
            ..Parameters::default()
        }
    }

    fn draw_network(&mut self, r: &mut Random) {
        self.delay_us = 10 + r.skewed(if self.calm { 4_000 } else { 20_000 });
        self.turn_us = 1 + r.skewed(3_000);
        self.serve_us = 1 + r.skewed(3_000);
        self.slices = sometimes(r, 500, 1..=700);
        self.late_sent = sometimes(r, 500, 1..=800);
        self.late_sent_us = r.range(100..=if self.calm { 20_000 } else { 60_000 });
        self.late_gone_us = r.range(1..=30_000);
        self.shuffle = r.chance(700);
    }

    fn draw_cluster(&mut self, r: &mut Random) {
        self.migration_ms = mean_or_never(r, 650, 2..=200);
        self.migration_step_us = 50 + r.skewed(20_000);
        self.migration_abort = sometimes(r, 400, 1..=400);
        self.gossip_us = 10 + r.skewed(300_000);
        self.map_us = 10 + r.skewed(100_000);
        self.map_first_us = r.skewed(300_000);
        self.refresh_ms = r.range(500..=5_000);
        self.failover_ms = mean_or_never(r, 200, 50..=800);
        self.chaos_ms = r.range(200..=3_000);
        self.password = r.chance(300);
        self.forget_ms = mean_or_never(r, 150, 50..=800);
        self.clock_ms = if r.chance(100) { u64::from(u32::MAX) - r.below(3_000) } else { 0 };
        self.hiccups = sometimes(r, 200, 1..=20);
        self.hiccup_ms = if self.calm { r.range(1..=50) } else { r.range(1..=1_000) };
        self.login = r.chance(150);
        self.drains = r.chance(300);
        self.nat = r.chance(200);
        self.slotted = r.chance(500);
    }

    fn draw_faults(&mut self, r: &mut Random) {
        self.cut_ms = mean_or_never(r, 450, 3..=400);
        if r.chance(150) {
            self.cut_ms = r.range(1..=6);
        }
        self.black_hole_ms = mean_or_never(r, 250, 50..=800);
        self.stall_ms = mean_or_never(r, 250, 20..=800);
        self.crash_ms = mean_or_never(r, 250, 100..=1_500);
        self.loading_ms = mean_or_never(r, 200, 50..=1_000);
        self.down_ms = mean_or_never(r, 200, 50..=1_000);
        self.moves_ms = mean_or_never(r, 150, 200..=1_500);
        self.moody = sometimes(r, 300, 1..=250);
        self.greeting = sometimes(r, 150, 1..=300);
        self.connect_refused = sometimes(r, 250, 1..=400);
        self.connect_hangs = sometimes(r, 150, 1..=300);
        self.connect_fails_at_once = sometimes(r, 150, 1..=300);
        self.cut_in_reply = sometimes(r, 250, 1..=60);
        self.stray_frames = sometimes(r, 100, 1..=10);
    }

    fn draw_habits(&mut self, r: &mut Random) {
        self.leaves = sometimes(r, 500, 1..=900);
        self.successors = sometimes(r, 700, 300..=1000);
        self.half_closes = sometimes(r, 300, 1..=400);
        self.resp3 = sometimes(r, 600, 1..=1000);
        self.large = sometimes(r, 300, 1..=400);
        self.hostile = sometimes(r, 400, 1..=500);
        if !self.calm {
            self.never_reads = sometimes(r, 200, 1..=300);
            self.slow_reads = sometimes(r, 200, 1..=400);
        }
        for weight in &mut self.weights {
            *weight = if r.chance(350) { 0 } else { 1 + r.skewed(100) as u32 };
        }
        self.weights[0] = self.weights[0].max(1);
    }

    fn draw_proxy(&mut self, r: &mut Random) {
        let roomy = self.calm || r.chance(500);
        let request_timeout_ms =
            if self.calm { 5_000 } else { r.pick(&[200, 400, 1_000, 2_000, 5_000]) };
        // A network too slow for the limit would fail for ever.
        let slowest_ms = (20 * self.delay_us + self.serve_us + self.turn_us) / 1_000 + 20;
        let connect_timeout_ms = if self.calm { 900 } else { r.pick(&[50, 200, 900]) };
        self.proxy = Knobs {
            clients_max: if roomy || r.chance(700) { 10_000 } else { r.range(1..=8) as u32 },
            client_requests_max: if r.chance(400) { r.range(1..=20) as u32 } else { 4_096 },
            client_output_soft: if roomy { 1 << 20 } else { r.range(1..=20_000) as usize },
            client_output_limit: if roomy {
                256 << 20
            } else {
                20_000 + r.skewed(1 << 20) as usize
            },
            client_query_limit: if roomy { 1 << 30 } else { 300_000 },
            client_stall_ms: r.range(500..=2_000),
            request_timeout_ms,
            connect_timeout_ms: connect_timeout_ms.max(slowest_ms),
            fence_lanes: r.range(1..=3) as usize,
            private_backends_max: if roomy { 256 } else { r.range(1..=4) as usize },
            split: r.chance(900),
            walk_whole_max: if r.chance(500) { 16_384 } else { 1 + r.skewed(10) as u32 },
            line_limit: ROOMY_LINES,
        };
    }

    pub fn settings(&self) -> Settings {
        let knobs = &self.proxy;
        Settings {
            node_user: None,
            node_password: self.password.then(|| Secret::new(PASSWORD)),
            clients_max: knobs.clients_max,
            client_requests_max: knobs.client_requests_max,
            client_output_soft: knobs.client_output_soft,
            client_output_limit: knobs.client_output_limit,
            client_query_limit: knobs.client_query_limit,
            client_stall_ms: knobs.client_stall_ms,
            request_timeout_ms: knobs.request_timeout_ms,
            connect_timeout_ms: knobs.connect_timeout_ms,
            fence_lanes: knobs.fence_lanes,
            private_backends_max: knobs.private_backends_max,
            split_reads: knobs.split,
            split_writes: knobs.split,
            walk_whole_max: knobs.walk_whole_max,
            walk_whole_max_old: knobs.walk_whole_max.into(),
            pubsub_output_limit: knobs.line_limit,
            ..Settings::default()
        }
    }

    /// Within this time all that was asked before the faults ended is answered: each leg of at most
    /// six may take the whole time limit, and the map may have to be learnt anew.
    pub fn patience_ms(&self) -> u64 {
        6 * (self.proxy.request_timeout_ms + self.proxy.connect_timeout_ms) + 15_000
    }

    /// Lines of MONITOR may be too many for who reads them.
    pub fn lines_are_many(&self) -> bool {
        self.proxy.line_limit < ROOMY_LINES
    }

    /// Something may end a client's connection although it did nothing wrong.
    pub fn closes_innocents(&self) -> bool {
        self.proxy.client_output_limit < 64 << 20 || self.proxy.client_query_limit < 1 << 30
    }
}

/// As by default.
const ROOMY_LINES: usize = 32 << 20;

pub const PASSWORD: &[u8] = b"p4ss of the nodes";

fn sometimes(r: &mut Random, often: u32, range: std::ops::RangeInclusive<u64>) -> u32 {
    if r.chance(often) { r.range(range) as u32 } else { 0 }
}

fn mean_or_never(r: &mut Random, often: u32, range: std::ops::RangeInclusive<u64>) -> u64 {
    if r.chance(often) { r.range(range) } else { 0 }
}
