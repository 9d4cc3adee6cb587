//! What /proc and the control group say of host and process. Not here: who is told.

use crate::config::Process;

pub(super) fn memory_limit(process: &Process) -> u64 {
    match process.memory_limit {
        0 => {
            memory_of_group().map_or_else(memory_of_host, |most| most.min(memory_of_host())) / 4 * 3
        }
        limit => limit,
    }
}

pub(super) fn memory_of_host() -> u64 {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib_in(&memory, "MemTotal:")
}

/// The least memory limit of the process's control group and of those above it (cgroups(7)): of
/// version 2, or of version 1, which says a number beyond all memory where there is no limit.
fn memory_of_group() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let found = groups.lines().filter_map(|line| {
        let (_, named) = line.split_once(':')?;
        let (controllers, path) = named.split_once(":/")?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let most = |group: &std::path::Path| {
            let file = std::path::Path::new(root).join(group).join(file);
            std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
        };
        std::path::Path::new(path).ancestors().filter_map(most).min()
    });
    found.min()
}

/// Bytes of a line such as `VmRSS:     1234 kB`; 0 if it is not there.
pub(super) fn kib_in(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// User and system time of the process, microseconds (proc_pid_stat(5): fields 14 and 15).
pub(super) fn cpu_times_us() -> Option<(u64, u64)> {
    /// Linux counts hundredths there on all machines.
    const TICK_US: u64 = 10_000;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, field 2, is in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || Some(fields.next()?.parse::<u64>().ok()?.saturating_mul(TICK_US));
    Some((next()?, next()?))
}

/// How long the calling thread has run and waited for a CPU so far, microseconds (proc(5):
/// schedstat, nanoseconds each); 0 where the kernel does not tell.
pub(super) fn wanted_cpu_us() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let both = text.split_whitespace().take(2).filter_map(|field| field.parse::<u64>().ok());
    both.sum::<u64>() / 1_000
}

pub(super) fn os() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {} {}", release.trim(), std::env::consts::ARCH)
}

pub(super) fn executable() -> String {
    std::env::current_exe().map_or_else(|_| String::new(), |path| path.display().to_string())
}
