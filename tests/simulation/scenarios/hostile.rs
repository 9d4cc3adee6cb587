//! What one client may ask so that others get what is not theirs, or wait: each was possible once.
//!
//! Not here: chance.

use super::*;
use ringway::proxy::local::Identity;

/// The connection that brings messages of the first node, let in.
fn let_in_subscriber(rig: &mut Rig) -> u32 {
    let (backend, now) = (rig.connecting.remove(0).0, rig.now());
    rig.proxy.handle_connected(backend, true, now);
    rig.settle();
    rig.answer(backend, "%1 $5 proto :3 ");
    backend
}

/// A driver whose clients are the admin.
fn administered(settings: Settings) -> Rig {
    let mut rig = Rig::new(Settings::default());
    let options = vec![("request_timeout_ms", "5000".to_owned()); 60];
    let admin = Identity { admin_user: Some("default".into()), options, ..identity() };
    rig.proxy = Proxy::new(settings, Arc::new(admin), [1, 2, 3, 4], 1, 1);
    rig.proxy.handle_topology(map(2), rig.now());
    rig
}

/// A request of many words.
fn many(name: &str, words: usize, word: &str) -> Vec<u8> {
    let names: Vec<&str> = name.split(' ').collect();
    let mut out = format!("*{}\r\n", names.len() + words).into_bytes();
    names.iter().for_each(|name| out.extend(bulk(name.as_bytes())));
    let word = bulk(word.as_bytes());
    (0..words).for_each(|_| out.extend_from_slice(&word));
    out
}

// --- whose reply it is ----------------------------------------------------------------------------

#[test]
fn refusal_of_a_channel_is_told_to_nobody_who_has_not_asked_for_it() {
    let mut rig = Rig::new(Settings::default());
    let (leaver, other) = (rig.client(), rig.client());
    let (refused, wanted) = (key("refused", true), key("wanted", true));
    rig.ask(leaver, &format!("SUBSCRIBE {refused}"));
    let backend = let_in_subscriber(&mut rig);
    // The entry of its request is another's by the time that the node answers.
    rig.proxy.handle_end(Conn::Client(leaver), true, rig.now());
    rig.settle();
    rig.ask(other, &format!("SUBSCRIBE {wanted}"));
    rig.answer(backend, "-NOPERM_no ");
    assert_eq!(rig.told(Conn::Client(other)), "");
    let len = wanted.len();
    rig.answer(backend, &format!(">3 $9 subscribe ${len} {wanted} :1 "));
    assert!(rig.told(Conn::Client(other)).contains("subscribe"));
}

#[test]
fn whole_cluster_command_that_waits_for_its_elders_is_counted_once() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let line = [words(&format!("INCR {}", key("a", true))), words("DBSIZE")].concat();
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.let_in(true);
    let first = rig.backend_of(1);
    rig.answer(first, ":1 ");
    rig.let_in(true);
    rig.answer(first, ":3 ");
    let second = rig.backend_of(2);
    rig.answer(second, ":4 ");
    assert_eq!(rig.told(Conn::Client(client)), ":1 :7 ");
    let facts = rig.proxy.facts();
    assert_eq!((facts.tally.commands, facts.counts.commands.iter().sum::<u64>()), (2, 2));
}

#[test]
fn size_of_a_reply_that_becomes_its_clients_next_in_the_middle_is_its_own() {
    let mut rig = administered(Settings { sample_keys: true, ..Settings::default() });
    let (first, second) = (rig.client(), rig.client());
    let (big, slow, small) = (key("big", true), key("slow", false), key("small", true));
    rig.ask(first, &format!("GET {big}"));
    rig.let_in(true);
    let (one, now) = (rig.backend_of(1), rig.now());
    let value = "x".repeat(400_000);
    rig.proxy.handle_received(Conn::Backend(one), b"$400000\r\n", now);
    rig.answer(one, &format!("{value} "));
    let line = [words(&format!("GET {slow}")), words(&format!("GET {small}"))].concat();
    rig.proxy.handle_received(Conn::Client(second), &line, now);
    rig.let_in(true);
    let two = rig.backend_of(2);
    rig.proxy.handle_received(Conn::Backend(one), b"$20000\r\n", now);
    rig.answer(two, "$1 v ");
    rig.answer(one, &format!("{} ", &value[..20_000]));
    rig.told(Conn::Client(second));
    rig.ask(second, "PROXY BIGKEYS");
    let told = rig.told(Conn::Client(second));
    assert!(told.contains(&format!("{big} :4000")), "{told}");
    assert!(told.contains(&format!("{small} :200")), "{told}");
}

// --- what takes others' time ----------------------------------------------------------------------

#[test]
fn publishing_beside_very_many_channels_takes_nobodys_time() {
    let mut rig = Rig::new(Settings::default());
    let (listener, publisher) = (rig.client(), rig.client());
    warm_up(&mut rig, publisher);
    let channels: Vec<String> = (0..200_000).map(|n| format!("channel-{n}")).collect();
    rig.ask(listener, &format!("SUBSCRIBE {}", channels.join(" ")));
    let began = clock();
    let line = words(&format!("PUBLISH {} m", key("c", true))).repeat(20_000);
    rig.proxy.handle_received(Conn::Client(publisher), &line, rig.now());
    rig.turn();
    let mut published = 0;
    loop {
        let asked = rig.told(Conn::Backend(0)).matches("PUBLISH").count();
        if asked == 0 {
            break;
        }
        published += asked;
        let bytes = ":0\r\n".repeat(asked);
        rig.proxy.handle_received(Conn::Backend(0), bytes.as_bytes(), rig.now());
        rig.turn();
    }
    assert_eq!(published, 20_000);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn transaction_of_what_takes_the_proxy_long_is_refused() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let line = [words("MULTI"), words("INFO").repeat(40_000), words("EXEC")].concat();
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    for _ in 0..2_000 {
        rig.turn();
    }
    let told = rig.told(Conn::Client(client));
    assert!(told.contains("-ERR what the proxy"), "no word of it");
    assert!(told.contains("-EXECABORT") && told.len() < 8 << 20, "{} bytes", told.len());
    assert!((10..2_000).contains(&told.matches("+QUEUED").count()));
    // A short one is run.
    let line = [words("MULTI"), words("INFO").repeat(100), words("EXEC")].concat();
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.settle();
    assert_eq!(rig.told(Conn::Client(client)).matches("redis_version").count(), 100);
}

/// Each looks at all clients.
#[test]
fn many_looks_at_all_clients_leave_the_turn_to_others() {
    let mut rig = Rig::new(Settings { clients_max: 50_000, ..Settings::default() });
    let clients: Vec<u32> = (0..20_000).map(|_| rig.client()).collect();
    let line = words("CLIENT UNBLOCK 1000000").repeat(6_000);
    rig.proxy.handle_received(Conn::Client(clients[0]), &line, rig.now());
    rig.turn();
    let told = rig.told(Conn::Client(clients[0])).matches(":0 ").count();
    assert!((1..3_000).contains(&told), "{told} in one turn");
    rig.ask(clients[1], "PING");
    assert_eq!(rig.told(Conn::Client(clients[1])), "+PONG ");
    let mut all = told;
    for _ in 0..200 {
        rig.turn();
        all += rig.told(Conn::Client(clients[0])).matches(":0 ").count();
    }
    assert_eq!(all, 6_000, "it goes on in pieces");
}

#[test]
fn very_many_names_of_options_take_nobodys_time() {
    let mut rig = administered(Settings::default());
    let client = rig.client();
    let began = clock();
    for name in ["x", "slowlog-max-len"] {
        let line = many("CONFIG GET", 500_000, name);
        rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
        rig.settle();
        assert!(rig.told(Conn::Client(client)).starts_with("-ERR "));
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    rig.ask(client, "CONFIG GET maxclients x timeout");
    assert!(rig.told(Conn::Client(client)).starts_with("*4 $10 maxclients "));
}

#[test]
fn pattern_that_is_tried_at_each_place_takes_nobodys_time() {
    let mut rig = Rig::new(Settings::default());
    let (listener, publisher) = (rig.client(), rig.client());
    let began = clock();
    let class = format!("*[{}]x", "a".repeat(4 << 20));
    for pattern in [class, "*".repeat(1 << 24)] {
        rig.ask(publisher, &format!("CONFIG GET {pattern}"));
        assert!(rig.told(Conn::Client(publisher)).starts_with('*'));
    }
    rig.ask(listener, &format!("PSUBSCRIBE *{}b", "a".repeat(30_000)));
    rig.ask(publisher, &format!("PUBLISH {} m", "a".repeat(200_000)));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn asking_for_a_long_script_very_often_takes_nobodys_time() {
    let mut rig = Rig::new(Settings::default());
    let (owner, client) = (rig.client(), rig.client());
    let body = "x".repeat(1_000_000);
    rig.ask(owner, &format!("EVAL {body} 1 {}", key("a", true)));
    let name = crate::scripts::name(body.as_bytes());
    let began = clock();
    rig.proxy.handle_received(
        Conn::Client(client),
        &many("SCRIPT EXISTS", 20_000, &name),
        rig.now(),
    );
    rig.settle();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn what_is_shown_of_long_commands_is_bounded_by_bytes() {
    let mut rig = administered(Settings::default());
    let watcher = rig.client();
    rig.ask(watcher, "MONITOR");
    rig.told(Conn::Client(watcher));
    // As many words of bytes that cannot be printed as a line shows.
    let line = many("MGET", 31, &"\u{1}".repeat(256));
    let others: Vec<u32> = (0..20).map(|_| rig.client()).collect();
    for _ in 0..40 {
        for &other in &others {
            rig.proxy.handle_received(Conn::Client(other), &line, rig.now());
        }
    }
    rig.turn();
    let told = rig.told(Conn::Client(watcher));
    assert!((100_000..4 << 20).contains(&told.len()), "{} bytes", told.len());
}

/// Two nodes have exchanged their addresses while thousands waited for both.
#[test]
fn thousands_of_scripts_whose_nodes_change_places_find_them_again() {
    const CLIENTS: usize = 20_000;
    let settings =
        Settings { fence_lanes: 1, clients_max: 2 * CLIENTS as u32, ..Settings::default() };
    let mut rig = Rig::new(settings);
    for n in 0..CLIENTS {
        let (client, now) = (rig.client(), rig.now());
        let line = words(&format!("EVAL x 1 {}", key("k", n % 2 == 0)));
        rig.proxy.handle_received(Conn::Client(client), &line, now);
    }
    rig.turn();
    let mut swapped = (*map(2)).clone();
    swapped.owners.iter_mut().for_each(|owner| *owner = 1 - *owner);
    swapped.version += 1;
    rig.proxy.handle_topology(Arc::new(swapped), rig.now());
    rig.pass(100);
    assert_eq!(rig.proxy.requests_open(), CLIENTS + 2, "and two numbers of the fence");
}

#[test]
fn tens_of_thousands_who_leave_while_their_scripts_wait_hold_nobody_up() {
    const CLIENTS: usize = 100_000;
    let settings =
        Settings { fence_lanes: 1, clients_max: 2 * CLIENTS as u32, ..Settings::default() };
    let mut rig = Rig::new(settings);
    let clients: Vec<u32> = (0..CLIENTS).map(|_| rig.client()).collect();
    let line = words(&format!("EVAL x 1 {}", key("k", true)));
    for &client in &clients {
        rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    }
    rig.turn();
    let began = clock();
    for &client in clients.iter().rev() {
        rig.proxy.handle_end(Conn::Client(client), true, rig.now());
    }
    rig.turn();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    rig.pass(6_000);
    assert_eq!(rig.proxy.requests_open(), 0);
}

// --- who would wait for ever ----------------------------------------------------------------------

/// It has answered before it had read all, and reads no more.
#[test]
fn request_refused_by_a_node_that_does_not_take_its_bytes_is_told_in_time() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("a", true);
    rig.ask(client, &format!("GET {key}"));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, "$1 v ");
    rig.told(Conn::Client(client));
    rig.prompt = false;
    rig.ask(client, &format!("GET {key}"));
    rig.answer(backend, &format!("-MOVED_{}_10.0.0.2:7000 ", slot_of(key.as_bytes())));
    rig.pass(8_000);
    assert!(rig.told(Conn::Client(client)).starts_with("-ERR "));
    assert_eq!(rig.proxy.requests_open(), 0);
}

// --- what meets in one turn -----------------------------------------------------------------------

#[test]
fn lane_that_is_free_in_the_turn_in_which_the_next_in_its_queue_leaves_goes_to_the_one_behind() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let (first, leaver, third) = (rig.client(), rig.client(), rig.client());
    let key = key("k", true);
    rig.ask(first, &format!("EVAL first 1 {key}"));
    rig.ask(leaver, &format!("EVAL leaver 1 {key}"));
    rig.ask(third, &format!("EVAL third 1 {key}"));
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let told = rig.told(Conn::Backend(fence));
    assert!(told.contains("first") && !told.contains("leaver"));
    let nonce = Rig::nonce(&told).replace(' ', "\r\n");
    let now = rig.now();
    rig.proxy.handle_end(Conn::Client(leaver), true, now);
    let bytes = format!(":1\r\n{nonce}");
    rig.proxy.handle_received(Conn::Backend(fence), bytes.as_bytes(), now);
    rig.settle();
    let told = rig.told(Conn::Backend(fence));
    assert!(told.contains("third") && !told.contains("leaver"), "{told}");
    rig.answer(fence, &format!(":3 {}", Rig::nonce(&told)));
    assert_eq!(rig.told(Conn::Client(first)), ":1 ");
    assert_eq!(rig.told(Conn::Client(third)), ":3 ");
    assert_eq!(rig.proxy.requests_open(), 0);
}

/// Its EXEC is half answered when its client leaves; the rest comes in the same turn, and another
/// client watches in it.
#[test]
fn guarded_transaction_whose_client_leaves_in_the_middle_of_its_reply_is_nobody_elses() {
    let mut rig = Rig::new(Settings::default());
    let (leaver, other) = (rig.client(), rig.client());
    let key = key("k", true);
    rig.ask(leaver, &format!("WATCH {key}"));
    rig.let_in(true);
    let guard = rig.backend_of(1);
    rig.answer(guard, "+OK ");
    for line in ["MULTI".to_owned(), format!("INCR {key}"), "EXEC".to_owned()] {
        rig.ask(leaver, &line);
    }
    assert!(rig.told(Conn::Backend(guard)).ends_with("EXEC "));
    let now = rig.now();
    rig.proxy.handle_received(Conn::Backend(guard), b"+OK\r\n+QUEUED\r\n+QUE", now);
    rig.proxy.handle_end(Conn::Client(leaver), true, now);
    rig.proxy.handle_received(Conn::Client(other), &words(&format!("WATCH {key}")), now);
    rig.proxy.handle_received(Conn::Backend(guard), b"UED\r\n*2\r\n:1\r\n:1\r\n", now);
    rig.let_in(true);
    assert!(rig.closed.contains(&Conn::Backend(guard)), "its state is in doubt");
    assert_eq!(rig.told(Conn::Client(other)), "");
    let next = rig.backend_of(1);
    rig.answer(next, "+OK ");
    assert_eq!(rig.told(Conn::Client(other)), "+OK ");
    rig.ask(other, "UNWATCH");
    rig.answer(next, "+OK ");
    assert_eq!(rig.proxy.requests_open(), 0);
}

/// A request of two parts, one of which loses its node after another process has taken over.
#[test]
fn cut_request_that_loses_a_node_while_its_client_is_given_away_is_answered_here() {
    let (mut old, mut new) = (Rig::new(Settings::default()), Rig::new(Settings::default()));
    let client = old.client();
    let (here, there) = (key("a", true), key("b", false));
    old.ask(client, &format!("MGET {here} {there}"));
    old.let_in(true);
    let (one, two) = (old.backend_of(1), old.backend_of(2));
    old.proxy.handle_hand_over(old.now());
    let more = words(&format!("INCR {here}"));
    old.proxy.handle_received(Conn::Client(client), &more, old.now());
    old.answer(one, "*1 $1 x ");
    old.lose(two);
    old.let_in(true);
    assert_eq!(old.offered, []);
    let two = old.backend_of(2);
    old.answer(two, "*1 $1 y ");
    assert_eq!(old.told(Conn::Client(client)), "*2 $1 x $1 y ");
    assert!(!old.told(Conn::Backend(one)).contains("INCR"));
    let parcel = parcel_of(&mut old).expect("it is offered once all is answered");
    let client = adopt(&mut new, &parcel);
    new.let_in(true);
    let one = new.backend_of(1);
    assert_eq!(new.told(Conn::Backend(one)).matches("INCR").count(), 1);
    new.answer(one, ":1 ");
    assert_eq!(new.told(Conn::Client(client)), ":1 ");
    assert_eq!((old.proxy.requests_open(), new.proxy.requests_open()), (0, 0));
}
