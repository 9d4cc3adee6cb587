//! A wall clock that jumps, for programs that a test starts: Debian's libfaketime, which is told
//! the distance by a file. The monotonic clock stays as it is, as it does when an operator or NTP sets
//! the time.
//!
//! Not here: the programs. redis-server cannot start with it (its jemalloc asks for the time before
//! the library is ready); valkey-server and Ringway can.

use std::path::{Path, PathBuf};

use crate::support::process::{Folder, with_prefix};

pub struct Clock {
    folder: Folder,
    library: PathBuf,
}

impl Clock {
    /// `None`, and it says so, where the library is not installed.
    pub fn new() -> Option<Clock> {
        let folder = std::fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
        let paths = folder.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
        let library = paths.into_iter().find(|path| path.exists());
        let Some(library) = library else {
            println!("SKIPPED: clock jumps need the package faketime");
            return None;
        };
        let clock = Clock { folder: Folder::new("clock"), library };
        clock.set("+0");
        Some(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.file("offset")
    }

    /// From within a second on: `+1d`, `-1d`, `+0`.
    pub fn set(&self, offset: &str) {
        let whole = self.folder.file("next");
        std::fs::write(&whole, format!("{offset}\n")).expect("the clock's file");
        std::fs::rename(whole, self.file()).expect("the clock's file");
    }

    /// What `work` starts in this thread goes by this clock.
    pub fn rule<T>(&self, work: impl FnOnce() -> T) -> T {
        let words = [
            "env".to_owned(),
            set("LD_PRELOAD", &self.library),
            set("FAKETIME_TIMESTAMP_FILE", &self.file()),
            "FAKETIME_CACHE_DURATION=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        with_prefix(&words, work)
    }
}

/// What the library keeps of processes that were killed stays in /dev/shm.
impl Drop for Clock {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kinds = ["faketime_shm_", "sem.faketime_sem_"];
            let pid = kinds.iter().find_map(|kind| name.strip_prefix(kind)?.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn set(name: &str, value: &Path) -> String {
    format!("{name}={}", value.display())
}
