//! A memory control group of the test's own, of version 1 or 2, that a program can be started in.
//!
//! Not here: what the program does there.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::with_prefix;

pub struct Group {
    folder: PathBuf,
    version: u8,
}

const ROOTS: [(u8, &str); 3] =
    [(1, "/sys/fs/cgroup/memory"), (2, "/sys/fs/cgroup"), (2, "/sys/fs/cgroup/unified")];

impl Group {
    /// `None`: this machine lets us make none, which is said.
    pub fn with_limit(bytes: u64) -> Option<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringway-test-{}-{number}", std::process::id());
        for (version, root) in ROOTS {
            let group = Group { folder: Path::new(root).join(&name), version };
            if std::fs::create_dir(&group.folder).is_err() {
                continue;
            }
            // What is no control group at all takes no limit; `drop` removes it.
            let limit = if version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
            if std::fs::write(group.folder.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        eprintln!("NO MEMORY CONTROL GROUP can be made here (not root?): {ROOTS:?}");
        None
    }

    /// Starts what `work` starts inside the group.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        let join = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.folder.display());
        with_prefix(&["sh", "-c", &join, "sh"], work)
    }

    /// How often the kernel has killed for want of memory in here.
    pub fn kills(&self) -> u64 {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let text = self.read(file);
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).expect("the kernel counts what it kills")
    }

    /// Everything charged: pages of the program, sockets and other objects of the kernel.
    pub fn used(&self) -> u64 {
        let file = if self.version == 1 { "memory.usage_in_bytes" } else { "memory.current" };
        self.read(file).trim().parse().expect("a number of bytes")
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever was in it is gone, or about to.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
