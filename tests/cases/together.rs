//! What all reactors answer together: clients of one that another lists, kills, unblocks; messages
//! and counts of subscribers over all.
//!
//! Not here: a reactor that does not answer (`proxy/tests_peers`).

use crate::bench::{answers, flavour, with};
use crate::support::client::Client;
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{millis, seconds, wait_until};

fn start(reactors: usize) -> (Cluster, Proxy) {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("reactors", &reactors.to_string())]));
    (cluster, proxy)
}

/// A client on each reactor: the kernel chooses, so as many are tried as it takes.
fn one_on_each<const N: usize>(proxy: &Proxy) -> [Client; N] {
    let mut found: [Option<Client>; N] = [const { None }; N];
    for _ in 0..1_000 {
        let mut client = proxy.client();
        // Ids are one more than the reactor's number, plus a multiple of their count.
        let reactor = (id_of(&mut client) - 1) as usize % N;
        found[reactor].get_or_insert(client);
        if found.iter().all(Option::is_some) {
            // Those that were not needed are gone.
            let settled = |client: &mut Client| lines(client, "CLIENT LIST").len() == N;
            let mut asking = proxy.client();
            wait_until(seconds(5), "spare clients to leave", || {
                lines(&mut asking, "CLIENT LIST").len() == N + 1
            });
            drop(asking);
            let mut all = found.map(|client| client.expect("one on each"));
            wait_until(seconds(5), "the last one to leave", || settled(&mut all[0]));
            return all;
        }
    }
    panic!("no client on each of {N} reactors");
}

fn id_of(client: &mut Client) -> i64 {
    client.run("CLIENT ID").integer()
}

fn lines(client: &mut Client, command: &str) -> Vec<String> {
    client.run(command).string().lines().map(str::to_owned).collect()
}

fn next(client: &mut Client) -> String {
    client.next_text()
}

#[test]
fn every_reactor_lists_the_clients_of_all() {
    let (_cluster, proxy) = start(3);
    let mut clients: [Client; 3] = one_on_each(&proxy);
    for (n, client) in clients.iter_mut().enumerate() {
        client.run(&format!("CLIENT SETNAME c{n}"));
    }
    let ids: Vec<i64> = clients.iter_mut().map(id_of).collect();
    let mut sorted = ids.clone();
    sorted.sort();
    for client in &mut clients {
        let shown = lines(client, "CLIENT LIST");
        let begin: Vec<String> = sorted.iter().map(|id| format!("id={id} ")).collect();
        assert!(shown.iter().zip(&begin).all(|(line, id)| line.starts_with(id)), "{shown:?}");
        assert_eq!(shown.len(), 3);
        assert_eq!(lines(client, &format!("CLIENT LIST ID {} {}", ids[0], ids[2])).len(), 2);
        let info = client.run("INFO clients").string();
        assert!(info.contains("connected_clients:3\r\n"), "{info}");
    }
    // In its place among other replies.
    let got = answers(&mut clients[1], &["PING", "CLIENT LIST", "GET none", "CLIENT LIST"]);
    assert_eq!((&*got[0], &*got[2]), ("PONG", "nil"));
    assert!(got[1].contains("name=c0") && got[3].contains("name=c2"), "{got:?}");
}

#[test]
fn kill_closes_clients_of_other_reactors() {
    let (_cluster, proxy) = start(2);
    let [mut here, mut there] = one_on_each(&proxy);
    let id = id_of(&mut there);
    assert_eq!(here.run(&format!("CLIENT KILL ID {id}")).text(), "1");
    there.expect_closed();
    assert_eq!(here.run(&format!("CLIENT KILL ID {id}")).text(), "0");
    let [mut first, mut second] = one_more_on_each(&proxy);
    for client in [&mut first, &mut second] {
        assert_eq!(client.run("PING").text(), "PONG");
    }
    // The old form, from whichever of the two is elsewhere.
    let of = first.stream().local_addr().expect("an address").to_string();
    assert_eq!(second.run(&format!("CLIENT KILL {of}")).text(), "OK");
    first.expect_closed();
    assert_eq!(second.run(&format!("CLIENT KILL {of}")).text(), "-ERR No such client");
    assert_eq!(second.run("CLIENT KILL TYPE normal SKIPME no").text(), "2");
    second.expect_closed();
    here.expect_closed();
}

/// Two more clients, one on each reactor, while others stay.
fn one_more_on_each(proxy: &Proxy) -> [Client; 2] {
    let mut found: [Option<Client>; 2] = [None, None];
    for _ in 0..1_000 {
        let mut client = proxy.client();
        let reactor = (id_of(&mut client) - 1) as usize % 2;
        found[reactor].get_or_insert(client);
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.map(|client| client.expect("one on each"))
}

#[test]
fn unblock_reaches_a_client_of_another_reactor() {
    let (_cluster, proxy) = start(2);
    let [mut here, mut there] = one_on_each(&proxy);
    let id = id_of(&mut there);
    for (word, expected) in [("", "nil"), (" ERROR", "-UNBLOCKED")] {
        assert_eq!(here.run(&format!("CLIENT UNBLOCK {id}{word}")).text(), "0");
        there.send(b"BLPOP together:list 0\r\n");
        wait_until(seconds(5), "the client to block", || {
            here.run("INFO clients").string().contains("blocked_clients:1\r\n")
        });
        assert_eq!(here.run(&format!("CLIENT UNBLOCK {id}{word}")).text(), "1");
        assert!(next(&mut there).starts_with(expected));
        assert_eq!(there.run("PING").text(), "PONG");
    }
}

#[test]
fn messages_and_counts_cross_reactors() {
    let (_cluster, proxy) = start(2);
    let [mut here, mut there] = one_on_each(&proxy);
    let mut third = proxy.client();
    for (client, numpat) in [(&mut here, 1), (&mut there, 2)] {
        client.send(b"SUBSCRIBE t:news\r\nPSUBSCRIBE t:n*\r\nSSUBSCRIBE t:shard\r\n");
        for _ in 0..3 {
            assert!(next(client).contains("subscribe"));
        }
        assert_eq!(third.run("PUBSUB NUMPAT").text(), "1", "with {numpat} clients");
    }
    let counted = |client: &mut Client| {
        answers(
            client,
            &[
                "PUBSUB NUMSUB t:news t:none",
                "PUBSUB SHARDNUMSUB t:shard",
                "PUBSUB NUMPAT",
                "PUBSUB CHANNELS t:*",
                "PUBSUB SHARDCHANNELS t:*",
            ],
        )
    };
    let expected = [
        "[\"t:news\", 2, \"t:none\", 0]",
        "[\"t:shard\", 2]",
        "1",
        "[\"t:news\"]",
        "[\"t:shard\"]",
    ];
    // From either reactor.
    for mut client in one_more_on_each(&proxy) {
        assert_eq!(counted(&mut client), expected);
        // The client that asks is not among those that it waits for.
        assert!(client.run("CLIENT LIST").string().contains(" oll=0 "));
        assert!(!client.run("CLIENT LIST").string().contains(" oll=1 "));
        // To subscribers on both.
        client.run("PUBLISH t:news hello");
        client.run("SPUBLISH t:shard s");
        for subscriber in [&mut here, &mut there] {
            let mut got = [next(subscriber), next(subscriber), next(subscriber)];
            got.sort();
            assert_eq!(
                got,
                [
                    "[\"message\", \"t:news\", \"hello\"]",
                    "[\"pmessage\", \"t:n*\", \"t:news\", \"hello\"]",
                    "[\"smessage\", \"t:shard\", \"s\"]"
                ]
            );
        }
    }
    drop(here);
    wait_until(seconds(5), "one subscriber to be forgotten", || {
        counted(&mut third)[..3] == ["[\"t:news\", 1, \"t:none\", 0]", "[\"t:shard\", 1]", "1"]
    });
}

/// Whatever nodes they listen at: the patterns' are not all the channel's.
#[test]
fn publish_counts_the_clients_of_all_reactors() {
    let (_cluster, proxy) = start(2);
    let [mut here, mut there] = one_on_each(&proxy);
    let mut publishers = one_more_on_each(&proxy);
    let subscribe = |client: &mut Client, line: &str, topics: usize| {
        client.send(format!("{line}\r\n").as_bytes());
        // Messages may stand before the confirmations.
        let confirmed = std::iter::repeat_with(|| next(client));
        let confirmed = confirmed.filter(|got| !got.contains("message\"")).take(topics);
        confirmed.for_each(|got| assert!(got.contains("subscribe\""), "{got}"));
    };
    for publisher in &mut publishers {
        assert_eq!(answers(publisher, &["PUBLISH t:news x", "SPUBLISH t:news x"]), ["0", "0"]);
    }
    subscribe(&mut here, "SUBSCRIBE t:news", 1);
    subscribe(&mut there, "PSUBSCRIBE t:n* t:ne* t:new* *:news t:* *s", 6);
    for publisher in &mut publishers {
        assert_eq!(answers(publisher, &["PUBLISH t:news x", "SPUBLISH t:news x"]), ["7", "0"]);
    }
    subscribe(&mut there, "SUBSCRIBE t:news", 1);
    subscribe(&mut there, "SSUBSCRIBE t:news", 1);
    subscribe(&mut here, "SSUBSCRIBE t:news", 1);
    for publisher in &mut publishers {
        assert_eq!(answers(publisher, &["PUBLISH t:news x", "SPUBLISH t:news x"]), ["8", "2"]);
        // In order, also behind one another and beside what has nothing to wait for.
        publisher.send("PUBLISH t:news x\r\nPING\r\nSPUBLISH t:news x\r\n".repeat(300).as_bytes());
        for _ in 0..300 {
            assert_eq!([next(publisher), next(publisher), next(publisher)], ["8", "PONG", "2"]);
        }
    }
    drop(there);
    for publisher in &mut publishers {
        wait_until(seconds(5), "the subscriber to be forgotten", || {
            answers(publisher, &["PUBLISH t:news x", "SPUBLISH t:news x"]) == ["1", "1"]
        });
    }
}

/// Who publishes as soon as the first subscription of another reactor is confirmed.
#[test]
fn message_that_follows_a_confirmation_is_counted_and_comes() {
    let (_cluster, proxy) = start(2);
    let [mut here, mut there] = one_on_each(&proxy);
    for round in 0..200 {
        let verb = ["SUBSCRIBE", "PSUBSCRIBE"][round % 2];
        there.send(format!("{verb} t:{round}\r\n").as_bytes());
        assert!(next(&mut there).contains("subscribe\""));
        assert_eq!(here.run(&format!("PUBLISH t:{round} x")).text(), "1", "round {round}");
        assert!(next(&mut there).contains("message\""), "round {round}");
        there.send(b"UNSUBSCRIBE\r\nPUNSUBSCRIBE\r\n");
        assert!(next(&mut there).contains("unsubscribe\""));
        assert!(next(&mut there).contains("punsubscribe\""));
    }
}

/// Nobody waits for a reactor that ends: the process is gone long before the drain's own limit.
#[test]
fn questions_do_not_hold_up_a_drain() {
    let (_cluster, mut proxy) = start(3);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let mut client = proxy.client();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.stream().set_write_timeout(Some(seconds(5))).expect("a time-out");
                    match client.try_call(&["CLIENT", "LIST"]) {
                        Ok(reply) => assert!(!reply.is_error(), "{}", reply.text()),
                        Err(_) => break,
                    }
                }
            });
        }
        std::thread::sleep(millis(200));
        proxy.process.terminate();
        let status = proxy.process.wait(seconds(5));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", proxy.log());
    });
}
