//! The listening socket and its connections, on a tokio-uring runtime in a thread of its own.
//!
//! Bounds: so many connections at a time (the oldest goes when another comes, so that half-open
//! ones keep nobody out), so many bytes of a request, so many seconds for each.
//!
//! Not here: HTTP's grammar (`http`), what there is to tell (`gather`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{sleep, timeout};
use tokio_uring::net::{TcpListener, TcpStream};

use super::gather::Shared;
use super::http::{self, Request, Response, Status};
use super::picture::Pool;
use super::{prometheus, show, top};
use crate::log::Log;
use crate::ready::{Readiness, Reason};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// For a request's head, and for taking the answer.
const HEAD_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long the peer may go on sending after its answer, so that it is not cut by a reset.
const LINGER_TIME: Duration = Duration::from_millis(300);
/// How often an address that somebody else has is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// After accepting has failed: there is perhaps no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CHUNK: usize = 2048;

/// The page as it is: style, script and all.
const PAGE: &str = include_str!("page.html");

pub fn start(listen: SocketAddr, shared: Arc<Shared>, log: Log) -> io::Result<()> {
    let run = move || match tokio_uring::Runtime::new(&tokio_uring::builder()) {
        Ok(runtime) => runtime.block_on(serve(listen, shared, log)),
        Err(error) => {
            let mut log = log;
            log.warn(unix_us(), "no admin endpoint", &[("error", &error)]);
        }
    };
    std::thread::Builder::new().name("admin".into()).spawn(run)?;
    Ok(())
}

/// The open ones, the oldest first.
type Open = Rc<RefCell<VecDeque<(u64, Rc<TcpStream>)>>>;

async fn serve(listen: SocketAddr, shared: Arc<Shared>, mut log: Log) {
    let listener = TcpListener::from_std(bind(listen, &mut log).await);
    log.info(unix_us(), "admin endpoint", &[("address", &listen)]);
    let open = Open::default();
    let local = listen.ip().is_loopback();
    for number in 0.. {
        log.handle_time(unix_us());
        let stream = match listener.accept().await {
            Ok((stream, _)) => Rc::new(stream),
            Err(error) => {
                log.warn(unix_us(), "admin endpoint cannot accept", &[("error", &error)]);
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if open.borrow().len() >= CONNECTIONS_MAX
            && let Some((_, oldest)) = open.borrow_mut().pop_front()
        {
            // Ends what is under way on it, and so its task.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        open.borrow_mut().push_back((number, stream.clone()));
        let (shared, open) = (shared.clone(), open.clone());
        tokio_uring::spawn(async move {
            converse(&stream, &shared, local).await;
            // A read that is still going on would keep the descriptor.
            let _ = stream.shutdown(Shutdown::Both);
            open.borrow_mut().retain(|(other, _)| *other != number);
        });
    }
}

/// The address may be another's for now: of the process that this one is to replace.
async fn bind(listen: SocketAddr, log: &mut Log) -> std::net::TcpListener {
    let mut told = false;
    loop {
        match std::net::TcpListener::bind(listen) {
            Ok(listener) => return listener,
            Err(error) if !told => {
                told = true;
                let fields = [("address", &listen as _), ("error", &error as _)];
                log.warn(unix_us(), "admin endpoint waits for its address", &fields);
            }
            Err(_) => (),
        }
        log.handle_time(unix_us());
        sleep(RETRY_EVERY).await;
    }
}

/// One request and its answer.
async fn converse(stream: &TcpStream, shared: &Shared, local: bool) {
    let Ok(Some(request)) = timeout(HEAD_TIME, read_head(stream)).await else { return };
    let (response, head_only) = match request {
        Ok(request) => (answer(&request, shared, local), request.head_only),
        Err(status) => (Response::plain(status, ""), false),
    };
    let written = timeout(ANSWER_TIME, stream.write_all(response.bytes(head_only))).await;
    if matches!(written, Ok((Ok(()), _))) {
        let _ = stream.shutdown(Shutdown::Write);
        let _ = timeout(LINGER_TIME, stream.read(vec![0; CHUNK])).await;
    }
}

/// `None`: the peer has left.
async fn read_head(stream: &TcpStream) -> Option<Result<Request, Status>> {
    let mut head = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let (read, back) = stream.read(chunk).await;
        chunk = back;
        match read {
            Ok(count @ 1..) => head.extend_from_slice(chunk.get(..count)?),
            Ok(0) | Err(_) => return None,
        }
        if let Some(request) = http::parse(&head) {
            return Some(request);
        }
    }
}

const INDEX: &str = "/metrics /healthz /readyz /topology /live /top and the live page at /\n";

fn answer(request: &Request, shared: &Shared, local: bool) -> Response {
    if local && !request.names_no_stranger() {
        let text = "The Host header names another host: ask by address, or as localhost.\n";
        return Response::plain(Status::Forbidden, text);
    }
    let json = |body| Response { status: Status::Ok, kind: "application/json", body };
    match request.path.as_str() {
        "/" => Response { status: Status::Ok, kind: "text/html; charset=utf-8", body: PAGE.into() },
        // That this is answered is all there is to it: a reactor that is stuck ends the process.
        "/healthz" => Response::plain(Status::Ok, "ok\n"),
        "/readyz" => ready(shared, request.word("pool")),
        "/metrics" => shared.latest().map_or_else(starting, |picture| Response {
            status: Status::Ok,
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: prometheus::text(&picture, shared.readiness(), &shared.turning()),
        }),
        "/topology" => {
            shared.latest().map_or_else(starting, |picture| json(show::topology(&picture)))
        }
        "/live" | "/top" => {
            let readiness = shared.readiness();
            match shared.with_history(|history| history.live(readiness)) {
                None => starting(),
                Some(live) if request.path == "/live" => json(show::live(&live)),
                Some(live) => {
                    let size = |name, usual| request.number(name).unwrap_or(usual);
                    let screen = top::Screen {
                        columns: size("columns", 100),
                        rows: size("rows", 200),
                        color: size("color", 0) > 0,
                    };
                    Response::plain(Status::Ok, top::text(&live, &screen))
                }
            }
        }
        _ => Response::plain(Status::NotFound, INDEX),
    }
}

fn starting() -> Response {
    Response::plain(Status::Unavailable, "starting\n")
}

/// Of the process, with a line for each pool where there are several; or of one pool: then the
/// process must be ready, too.
fn ready(shared: &Shared, wanted: Option<&str>) -> Response {
    let process = shared.readiness();
    let latest = shared.latest();
    let pools = latest.as_ref().map_or(&[][..], |picture| picture.pools.as_slice());
    let of = |pool: &Pool| match process {
        Readiness::Ready if pool.covered() == 0 => Readiness::NotReady(Reason::NoSlots),
        other => other,
    };
    let (readiness, pools) = match wanted {
        None => (process, if pools.len() > 1 { pools } else { &[] }),
        Some(name) => match pools.iter().find(|pool| &*pool.name == name) {
            Some(pool) => (of(pool), &[][..]),
            None if pools.is_empty() => return starting(),
            None => return Response::plain(Status::NotFound, "There is no such pool.\n"),
        },
    };
    let mut body = format!("{readiness}\n");
    for pool in pools {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{}: {}", pool.name, of(pool));
    }
    let ready = readiness == Readiness::Ready;
    Response::plain(if ready { Status::Ok } else { Status::Unavailable }, body)
}

#[allow(clippy::disallowed_methods, reason = "for the lines of this thread's log")]
fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
