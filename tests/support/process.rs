//! A child process that never outlives its test: killed by its id on drop, and by the kernel if we
//! die first.
//!
//! Not here: what the process is (`cluster`, `proxy`).

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::patience;

pub struct Process {
    child: Child,
    name: String,
}

thread_local! {
    static PREFIX: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Programs that `work` starts in this thread are run by `prefix` (`prlimit …`, `ip netns exec …`).
pub fn with_prefix<T>(prefix: &[&str], work: impl FnOnce() -> T) -> T {
    let prefix = prefix.iter().map(|word| (*word).to_owned()).collect();
    let before = PREFIX.replace(prefix);
    let done = work();
    PREFIX.set(before);
    done
}

/// Signals that end no program which does not ask for them.
pub fn harmless_signals() -> [Signal; 7] {
    [
        Signal::PIPE,
        Signal::CONT,
        Signal::WINCH,
        Signal::URG,
        Signal::CHILD,
        Signal::HUP,
        Signal::CONT,
    ]
}

type Order = (Command, Sender<std::io::Result<Child>>);

/// The kernel's parent-death signal follows the *thread* that spawned; so one thread that never
/// ends spawns all.
fn spawn_from_one_thread(command: Command) -> std::io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in receiver {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, receiver) = channel();
    orders.lock().unwrap().send((command, sender)).expect("spawning thread lives");
    receiver.recv().expect("spawning thread answers")
}

impl Process {
    /// Starts `program` with its output in `log`.
    pub fn start<S: AsRef<str>>(program: &Path, args: &[S], log: &Path) -> Process {
        Self::start_with(program, args, &[], log)
    }

    pub fn start_with<S: AsRef<str>>(
        program: &Path,
        args: &[S],
        environment: &[(&str, &str)],
        log: &Path,
    ) -> Process {
        let out = File::create(log).expect("log file");
        let prefix = PREFIX.with_borrow(Clone::clone);
        let (first, more) = prefix.split_first().map_or(("setpriv", &[][..]), |(f, m)| (f, m));
        let mut command = Command::new(first);
        command.args(more);
        if !prefix.is_empty() {
            command.arg("setpriv");
        }
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command.args(args.iter().map(AsRef::as_ref));
        // Our own `RINGWAY_…` variables are no options of the proxy.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RINGWAY_") {
                command.env_remove(name);
            }
        }
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stderr(out.try_clone().expect("log handle")).stdout(out);
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let child = spawn_from_one_thread(command)
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        Process { child, name }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its end, which must come: `None` after as long as `patience` says.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.end_within(patience(limit))
    }

    /// Whether it runs on for so long.
    pub fn outlives(&mut self, time: Duration) -> bool {
        self.end_within(time).is_none()
    }

    fn end_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    pub fn send(&self, signal: Signal) {
        self.signal(signal);
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.status_field("VmRSS:")
    }

    /// How long those of its threads that are meant have waited for a CPU so far, by their names.
    pub fn starved(&self, is_meant: impl Fn(&str) -> bool) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id()));
        let of = |thread: PathBuf| {
            let name = std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
            if is_meant(name.trim_end()) { starved(&thread) } else { Duration::ZERO }
        };
        threads.into_iter().flatten().flatten().map(|thread| of(thread.path())).sum()
    }

    fn status_field(&self, field: &str) -> u64 {
        let text =
            std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}

/// How long a thread has waited for a CPU so far (proc(5): schedstat).
fn starved(thread: &Path) -> Duration {
    let text = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    let nanos = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// The same of the calling thread.
pub fn starved_here() -> Duration {
    starved(Path::new("/proc/thread-self"))
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("({} with pid {} was running)", self.name, self.id());
        }
    }
}

/// A folder of its own under the system's temporary one, removed on drop; kept when the test fails.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(what: &str) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringway-test-{}-{number}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("temporary folder");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("(logs kept in {})", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
