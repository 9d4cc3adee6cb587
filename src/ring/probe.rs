//! Why io_uring is refused, and how ready a host is: facts are read, then explained.
//!
//! Not here: sysctls of the network (`check`), changing anything.

use std::fs;
use std::sync::mpsc;
use std::thread;

use io_uring::Probe;
use io_uring::opcode;

use super::setup;
use super::setup::Granted;
use super::setup::RingSettings;
use super::system;

/// What the explanation of a refusal leans on. None: could not be read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `kernel.io_uring_disabled`; absent before 6.6.
    pub disabled: Option<u32>,
    /// The `Seccomp:` line of /proc/self/status; 2: a filter.
    pub seccomp: Option<u32>,
    /// The first line of /proc/version.
    pub version: String,
    /// /proc/sys/kernel/osrelease.
    pub release: String,
    /// Soft and hard RLIMIT_MEMLOCK, bytes; `u64::MAX`: none.
    pub memlock: Option<(u64, u64)>,
    /// CAP_IPC_LOCK: the limit does not count.
    pub ipc_lock: bool,
    /// Soft and hard RLIMIT_NOFILE.
    pub nofile: Option<(u64, u64)>,
    /// Bytes of locked memory that one ring takes.
    pub need: u64,
}

/// One line of `ringway check`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub name: &'static str,
    pub ok: bool,
    pub value: String,
    /// What to change, and why.
    pub advice: Option<String>,
}

/// What one ring takes of RLIMIT_MEMLOCK, a little more than measured on Linux 6.18 (512 to 560 KiB
/// with the defaults): 64 bytes a submission, 16 a completion, 16 a receive buffer, and pages.
fn need_of(settings: &RingSettings) -> u64 {
    const PAGES: u64 = 48 * 1024;
    64 * u64::from(settings.entries)
        + 16 * u64::from(settings.cq_entries)
        + 16 * u64::from(settings.buffer_count)
        + PAGES
}

const CAP_IPC_LOCK: u32 = 14;

/// The kernel that brought DEFER_TASKRUN.
const KERNEL_FLOOR: (u32, u32) = (6, 1);

pub fn read_facts(settings: &RingSettings) -> Facts {
    let status = read("/proc/self/status");
    let capabilities = field(&status, "CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    Facts {
        disabled: read("/proc/sys/kernel/io_uring_disabled").parse().ok(),
        seccomp: field(&status, "Seccomp:").and_then(|text| text.parse().ok()),
        version: read("/proc/version"),
        release: read("/proc/sys/kernel/osrelease"),
        memlock: system::limits(libc::RLIMIT_MEMLOCK),
        ipc_lock: capabilities.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1),
        nofile: system::limits(libc::RLIMIT_NOFILE),
        need: need_of(settings),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Cause and remedy of an errno from io_uring's set-up (io-uring.md 5). Pure.
pub fn explain(errno: i32, facts: &Facts) -> String {
    match errno {
        libc::EPERM | libc::EACCES | libc::ENOSYS => explain_refused(errno, facts),
        libc::EINVAL if is_gvisor(facts) => GVISOR.to_owned(),
        libc::EINVAL => format!(
            "kernel {} does not know the flags needed (EINVAL); Linux {}.{} or newer is needed",
            facts.release, KERNEL_FLOOR.0, KERNEL_FLOOR.1
        ),
        libc::ENOMEM => explain_memory(facts),
        libc::EMFILE | libc::ENFILE => format!(
            "no file descriptors left (limit {}); raise it: `ulimit -n`, LimitNOFILE= (systemd), \
             --ulimit nofile= (Docker), or fs.file-max if the whole host is out of them",
            facts.nofile.map_or_else(|| "unknown".to_owned(), |(soft, _)| soft.to_string())
        ),
        libc::EEXIST => "used from a thread that did not make it: a bug in Ringway".to_owned(),
        errno => format!("{}", std::io::Error::from_raw_os_error(errno)),
    }
}

const GVISOR: &str = "this sandbox (gVisor) has no usable io_uring; run the container with the \
                      host's kernel (runtime runc)";

fn is_gvisor(facts: &Facts) -> bool {
    facts.version.contains("gVisor")
}

fn explain_refused(errno: i32, facts: &Facts) -> String {
    let name = if errno == libc::ENOSYS { "ENOSYS" } else { "EPERM" };
    if is_gvisor(facts) {
        return GVISOR.to_owned();
    }
    if let Some(value @ 1..) = facts.disabled {
        let also = if value == 1 {
            ", or run as root, or add the group of this user as kernel.io_uring_group"
        } else {
            ""
        };
        return format!(
            "the sysctl kernel.io_uring_disabled is {value} ({name}); set it to 0: \
             `sysctl -w kernel.io_uring_disabled=0`{also}"
        );
    }
    if facts.release.to_lowercase().contains("microsoft") {
        return format!(
            "WSL refuses io_uring ({name}); use a WSL kernel that has it, or a Linux host"
        );
    }
    if facts.seccomp == Some(2) {
        return format!(
            "blocked by a seccomp filter ({name}), as Docker, Podman and Kubernetes do by \
             default; use a seccomp profile that allows io_uring_setup, io_uring_enter and \
             io_uring_register (--security-opt seccomp=PROFILE.json, securityContext.\
             seccompProfile)"
        );
    }
    if errno == libc::ENOSYS {
        return format!(
            "kernel {} has no io_uring (ENOSYS); Linux {}.{} or newer is needed",
            facts.release, KERNEL_FLOOR.0, KERNEL_FLOOR.1
        );
    }
    format!("refused ({name}) by something other than sysctl and seccomp: SELinux or AppArmor?")
}

fn explain_memory(facts: &Facts) -> String {
    let limit = match facts.memlock {
        Some((u64::MAX, _)) => "unlimited".to_owned(),
        Some((soft, _)) => format!("{} KiB", soft / 1024),
        None => "unknown".to_owned(),
    };
    if facts.ipc_lock || matches!(facts.memlock, Some((u64::MAX, _))) {
        return format!("out of memory (ENOMEM; locked memory: {limit}, does not count here)");
    }
    format!(
        "locked memory is limited to {limit} (ENOMEM), for all programs of this user together; \
         about {} KiB is needed for each reactor; raise it: LimitMEMLOCK=infinity (systemd), \
         --ulimit memlock=-1 (Docker), `ulimit -l`, or grant CAP_IPC_LOCK; or a smaller \
         ring_entries",
        facts.need / 1024
    )
}

/// What was learned by making a ring.
#[derive(Clone, Debug, Default)]
struct Trial {
    granted: Option<Granted>,
    errno: i32,
    missing: Vec<&'static str>,
}

/// How ready this host is for so many rings of this size. Makes one for a moment, in a thread of
/// its own; where locked memory is limited, as many as there will be.
pub fn report(settings: &RingSettings, rings: usize) -> Vec<Finding> {
    let (sender, receiver) = mpsc::channel();
    let (entries, completions) = (settings.entries, settings.cq_entries);
    let facts = read_facts(settings);
    let limited = !facts.ipc_lock && facts.memlock.is_some_and(|(soft, _)| soft != u64::MAX);
    let others = if limited { rings.saturating_sub(1) } else { 0 };
    // A ring counts against the thread that makes it.
    let thread = thread::spawn(move || sender.send(try_rings(others, entries, completions)));
    let trial = receiver.recv().unwrap_or_default();
    let _ = thread.join();
    findings(&facts, rings, &trial)
}

/// Tries one ring while so many others are held.
fn try_rings(others: usize, entries: u32, completions: u32) -> Trial {
    let held: Result<Vec<_>, _> = (0..others).map(|_| setup::build(entries, completions)).collect();
    match held {
        Ok(_held) => try_ring(entries, completions),
        Err(error) => Trial { errno: error.raw_os_error().unwrap_or(0), ..Trial::default() },
    }
}

fn try_ring(entries: u32, completions: u32) -> Trial {
    match setup::build(entries, completions) {
        Err(error) => Trial { errno: error.raw_os_error().unwrap_or(0), ..Trial::default() },
        Ok((ring, no_sqarray)) => {
            let mut probe = Probe::new();
            let probed = ring.submitter().register_probe(&mut probe).is_ok();
            let needed = [
                ("accept", opcode::AcceptMulti::CODE),
                ("receive", opcode::Recv::CODE),
                ("send", opcode::Send::CODE),
                ("connect", opcode::Connect::CODE),
                ("cancel", opcode::AsyncCancel::CODE),
                ("read", opcode::Read::CODE),
            ];
            let missing = needed
                .iter()
                .filter(|(_, code)| probed && !probe.is_supported(*code))
                .map(|(name, _)| *name)
                .collect();
            let params = ring.params();
            let granted = Granted {
                min_wait: params.is_feature_min_timeout(),
                no_sqarray,
                no_iowait: params.is_feature_no_iowait(),
                ring_fd_registered: ring.submitter().register_ring_fd().is_ok(),
                sq_entries: params.sq_entries(),
                cq_entries: params.cq_entries(),
            };
            Trial { granted: Some(granted), errno: 0, missing }
        }
    }
}

fn findings(facts: &Facts, rings: usize, trial: &Trial) -> Vec<Finding> {
    let mut found = vec![finding("kernel", true, facts.release.clone(), None)];
    found.push(match trial.granted {
        Some(_) => finding("io_uring", true, "usable".to_owned(), None),
        None => finding("io_uring", false, "refused".to_owned(), Some(explain(trial.errno, facts))),
    });
    if let Some(granted) = trial.granted {
        found.push(finding(
            "io_uring operations",
            trial.missing.is_empty(),
            if trial.missing.is_empty() { "all".to_owned() } else { trial.missing.join(", ") },
            (!trial.missing.is_empty())
                .then(|| "this kernel lacks the operations named; use a newer one".to_owned()),
        ));
        found.push(finding("io_uring no_sqarray", true, yes(granted.no_sqarray), None));
        found.push(finding(
            "io_uring registered ring",
            true,
            yes(granted.ring_fd_registered),
            None,
        ));
        found.push(finding(
            "io_uring minimum wait",
            granted.min_wait,
            yes(granted.min_wait),
            (!granted.min_wait).then(|| {
                "harmless: gather_us has no effect; Linux 6.12 or newer has it".to_owned()
            }),
        ));
        found.push(finding(
            "io_uring no_iowait",
            granted.no_iowait,
            yes(granted.no_iowait),
            (!granted.no_iowait).then(|| {
                "harmless: an idle reactor is shown as iowait and as I/O pressure; Linux 6.15 \
                 or newer does not"
                    .to_owned()
            }),
        ));
    }
    found.push(memlock_finding(facts, rings as u64));
    found.push(nofile_finding(facts));
    if let Some(value) = facts.disabled {
        found.push(finding("kernel.io_uring_disabled", value == 0, value.to_string(), None));
    }
    found
}

fn memlock_finding(facts: &Facts, rings: u64) -> Finding {
    // Twice: an old process may still end while the new one starts.
    let wanted = 2 * rings * facts.need;
    let (value, low) = match facts.memlock {
        Some((u64::MAX, _)) => ("unlimited".to_owned(), false),
        Some((soft, _)) => (format!("{} KiB", soft / 1024), soft < wanted),
        None => ("unknown".to_owned(), false),
    };
    if facts.ipc_lock {
        return finding("memlock", true, format!("{value} (CAP_IPC_LOCK: does not count)"), None);
    }
    let advice = low.then(|| {
        format!(
            "rings count against it, about {} KiB for each of {rings} reactor(s), all programs \
             of the user together; set {} KiB or more: LimitMEMLOCK=, --ulimit memlock=",
            facts.need / 1024,
            wanted.div_ceil(1024)
        )
    });
    finding("memlock", !low, value, advice)
}

fn nofile_finding(facts: &Facts) -> Finding {
    let Some((soft, hard)) = facts.nofile else {
        return finding("nofile", true, "unknown".to_owned(), None);
    };
    let low = hard < 4096;
    let advice = low.then(|| {
        "each client and each node connection takes one; allow twice the clients expected and \
         1024 more: LimitNOFILE=, --ulimit nofile="
            .to_owned()
    });
    finding("nofile", !low, format!("{soft}, raised to {hard} at start"), advice)
}

fn finding(name: &'static str, ok: bool, value: String, advice: Option<String>) -> Finding {
    Finding { name, ok, value, advice }
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Facts {
        Facts {
            disabled: Some(0),
            seccomp: Some(0),
            version: "Linux version 6.18.0".to_owned(),
            release: "6.18.0".to_owned(),
            memlock: Some((65536, 65536)),
            ipc_lock: false,
            nofile: Some((1024, 20000)),
            need: 1 << 20,
        }
    }

    #[track_caller]
    fn check(errno: i32, facts: &Facts, want: &[&str]) {
        let text = explain(errno, facts);
        for part in want {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }

    #[test]
    fn refusals_name_cause_and_remedy() {
        let two = Facts { disabled: Some(2), seccomp: Some(2), ..plain() };
        check(libc::EPERM, &two, &["io_uring_disabled is 2", "sysctl -w"]);
        let one = Facts { disabled: Some(1), ..plain() };
        check(libc::EPERM, &one, &["io_uring_disabled is 1", "kernel.io_uring_group"]);
        let filter = Facts { seccomp: Some(2), ..plain() };
        check(libc::EPERM, &filter, &["seccomp", "io_uring_setup", "--security-opt"]);
        let podman = Facts { seccomp: Some(2), disabled: None, ..plain() };
        check(libc::ENOSYS, &podman, &["seccomp", "ENOSYS"]);
        let gvisor = Facts { version: "Linux version 4.4.0 gVisor".to_owned(), ..plain() };
        check(libc::ENOSYS, &gvisor, &["gVisor"]);
        check(libc::EINVAL, &gvisor, &["gVisor"]);
        let wsl = Facts { release: "5.15.90.1-microsoft-standard-WSL2".to_owned(), ..plain() };
        check(libc::EPERM, &wsl, &["WSL"]);
        let old = Facts { release: "4.19.0".to_owned(), disabled: None, ..plain() };
        check(libc::ENOSYS, &old, &["4.19.0", "6.1"]);
        let older = Facts { release: "5.15.0".to_owned(), ..plain() };
        check(libc::EINVAL, &older, &["5.15.0", "6.1"]);
        check(libc::EPERM, &plain(), &["SELinux"]);
    }

    #[test]
    fn lack_of_something_names_the_limit() {
        check(libc::ENOMEM, &plain(), &["64 KiB", "1024 KiB", "LimitMEMLOCK", "--ulimit"]);
        let free = Facts { ipc_lock: true, ..plain() };
        check(libc::ENOMEM, &free, &["out of memory"]);
        let unlimited = Facts { memlock: Some((u64::MAX, u64::MAX)), ..plain() };
        check(libc::ENOMEM, &unlimited, &["out of memory", "unlimited"]);
        check(libc::EMFILE, &plain(), &["limit 1024", "LimitNOFILE"]);
        check(libc::EEXIST, &plain(), &["bug"]);
        check(libc::ENXIO, &plain(), &["No such device"]);
    }

    #[test]
    fn report_names_what_to_change() {
        let granted = Granted {
            min_wait: true,
            no_sqarray: true,
            no_iowait: false,
            ring_fd_registered: true,
            sq_entries: 4096,
            cq_entries: 16384,
        };
        let trial = Trial { granted: Some(granted), ..Trial::default() };
        let bad: Vec<_> = findings(&plain(), 1, &trial)
            .into_iter()
            .filter(|of| !of.ok)
            .map(|of| of.name)
            .collect();
        assert_eq!(bad, ["io_uring no_iowait", "memlock"]);
        let refused = Trial { errno: libc::EPERM, ..Trial::default() };
        let found = findings(&Facts { seccomp: Some(2), ..plain() }, 1, &refused);
        let advice = found.iter().find(|of| of.name == "io_uring").and_then(|of| of.advice.clone());
        assert!(advice.is_some_and(|text| text.contains("seccomp")));
    }

    #[test]
    fn this_host_can_be_read() {
        let settings = RingSettings::default();
        assert!(!read_facts(&settings).release.is_empty());
        assert!(report(&settings, 1).len() >= 4);
    }
}
