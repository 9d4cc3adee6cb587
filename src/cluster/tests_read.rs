//! Tests of reading SLOTS, SHARDS, NODES and INFO: every host form, and what hostile nodes say.

use super::*;
use crate::resp::value::{Value, parse_value};

fn asked() -> Endpoint {
    Endpoint { host: "10.9.9.9".into(), port: 7000 }
}

/// A terse writing of replies: `[a 1 nil ""]` is an array of a bulk string, an integer, a null and
/// an empty string.
fn value(text: &str) -> Value {
    let mut words = text.replace('[', " [ ").replace(']', " ] ");
    words = words.trim().to_string();
    let mut stack: Vec<Vec<Value>> = vec![Vec::new()];
    for word in words.split_whitespace() {
        let next = match word {
            "[" => {
                stack.push(Vec::new());
                continue;
            }
            "]" => Value::Array(stack.pop().unwrap()),
            "nil" => Value::Null,
            "\"\"" => Value::Bulk(Vec::new()),
            word => {
                word.parse().map_or_else(|_| Value::Bulk(word.as_bytes().to_vec()), Value::Integer)
            }
        };
        stack.last_mut().unwrap().push(next);
    }
    stack.pop().unwrap().pop().unwrap()
}

/// `first-last=host:port` of each owned range, then the replicas as `~host:port`.
fn show(topology: &Topology) -> String {
    let mut parts = Vec::new();
    let mut slot = 0;
    while slot < SLOTS {
        let owner = topology.owners[slot];
        let last = (slot..SLOTS).take_while(|&at| topology.owners[at] == owner).last().unwrap();
        if owner != UNOWNED {
            parts.push(format!("{slot}-{last}={}", topology.nodes[usize::from(owner)].endpoint));
        }
        slot = last + 1;
    }
    for node in &topology.nodes {
        if node.role == Role::Replica {
            parts.push(format!("~{}", node.endpoint));
        }
    }
    parts.join(" ")
}

#[track_caller]
fn check_slots(reply: &str, expected: &str) {
    let found = read_slots(&value(reply), &asked());
    assert_eq!(found.map_or_else(|error| error.to_string(), |map| show(&map)), expected);
}

#[track_caller]
fn check_shards(reply: &str, expected: &str) {
    let found = read_shards(&value(reply), &asked());
    assert_eq!(found.map_or_else(|error| error.to_string(), |map| show(&map)), expected);
}

#[test]
fn slots_in_every_host_form_are_read() {
    check_slots("[[0 5 [1.2.3.4 7001 aa]]]", "0-5=1.2.3.4:7001");
    check_slots("[[0 5 [nil 7001 aa]]]", "0-5=10.9.9.9:7001");
    check_slots("[[0 5 [\"\" 7001 aa]]]", "0-5=10.9.9.9:7001");
    check_slots("[[0 5 [? 7001 aa]] [6 9 [b 7002 bb]]]", "6-9=b:7002");
    check_slots("[[0 5 [fd01::85:14 6379 aa]]]", "0-5=fd01::85:14:6379");
    check_slots("[[0 5 [redis-0.svc.local 6379 aa]]]", "0-5=redis-0.svc.local:6379");
    check_slots("[[0 5 [1.2.3.4 7001 aa [hostname x ip 1.1.1.1]]]]", "0-5=1.2.3.4:7001");
    check_slots("[[0 5 [1.2.3.4 7001 aa [ ] [future [1 2]] 9]]]", "0-5=1.2.3.4:7001");
    check_slots("[[0 5 [1.2.3.4 7001]]]", "0-5=1.2.3.4:7001");
    check_slots("[[0 5 [1.2.3.4 0 aa]]]", "");
}

#[test]
fn replicas_keep_to_their_primary() {
    check_slots(
        "[[0 5 [a 1 aa] [b 1 bb] [? 1 cc] [d 1 dd]] [7 8 [a 1 aa] [b 1 bb]]]",
        "0-5=a:1 7-8=a:1 ~b:1 ~d:1",
    );
    let reply = value("[[0 5 [z 1 zz] [b 1 bb]] [6 9 [a 1 aa] [y 1 yy]]]");
    let topology = read_slots(&reply, &asked()).unwrap();
    let owner = topology.owners[0];
    let replicas: Vec<_> = topology.replicas_of(owner).collect();
    assert_eq!(replicas, [topology.node_by_id("bb").unwrap()]);
    let shards: Vec<_> = topology.nodes.iter().map(|node| node.shard).collect();
    assert_eq!(shards, [0, 1, 0, 1], "nodes by id: aa bb yy zz");
}

#[test]
fn no_slots_is_an_empty_map() {
    check_slots("[]", "");
    check_shards("[]", "");
}

#[test]
fn slots_of_the_wrong_shape_are_refused() {
    check_slots("7", "malformed reply: not an array");
    check_slots("[7]", "malformed reply: a range is no array");
    check_slots("[[0]]", "malformed reply: a range without its ends");
    check_slots("[[a b [x 1]]]", "malformed reply: a range end is no number");
    check_slots("[[0 16384 [x 1]]]", "malformed reply: a range outside 0..=16383");
    check_slots("[[-1 5 [x 1]]]", "malformed reply: a range outside 0..=16383");
    check_slots("[[9 5 [x 1]]]", "malformed reply: a range outside 0..=16383");
    check_slots("[[0 5 7]]", "malformed reply: a node is no array");
    check_slots("[[0 5 [x]]]", "malformed reply: a node without host and port");
    check_slots("[[0 5 [x y]]]", "malformed reply: a port is no number");
    check_slots("[[0 5 [x 70000]]]", "");
    check_slots("[[0 5]]", "");
    let refusal = Value::Error(b"ERR This instance has cluster support disabled".to_vec());
    assert_eq!(
        read_slots(&refusal, &asked()).unwrap_err().to_string(),
        "the node refused: ERR This instance has cluster support disabled"
    );
}

#[test]
fn more_nodes_than_the_bound_are_refused() {
    let member = |index: usize| format!("[h {}]", index + 1);
    let members: String = (0..crate::limits::NODES_MAX + 1).map(member).collect();
    check_slots(&format!("[[0 5 {members}]]"), "more than 4096 nodes");
}

#[test]
fn shards_are_read_with_health_and_ports() {
    // As Redis 7.0.15 answers.
    check_shards(
        "[[slots [0 5460] nodes [\
           [id aa port 7910 ip 127.0.0.1 endpoint 127.0.0.1 role master replication-offset 42 \
            health online]\
           [id bb port 7913 ip 127.0.0.1 endpoint 127.0.0.1 role replica replication-offset 0 \
            health loading]]]\
          [slots [5461 9000 9002 16383] nodes [\
           [id cc port 7911 ip 127.0.0.1 endpoint host-c hostname host-c role master health online \
            future [1 2]]]]]",
        "0-5460=127.0.0.1:7910 5461-9000=host-c:7911 9002-16383=host-c:7911 ~127.0.0.1:7913",
    );
    check_shards(
        "[[slots [0 5] nodes [[id a tls-port 7001 endpoint x role master health online]]]]",
        "0-5=x:7001",
    );
    // As Valkey 9.1.2 answers before its address is known.
    check_shards(
        "[[slots [0 5] nodes [[id a port 7 ip \"\" endpoint \"\" hostname n role master health online]] \
          id ff]]",
        "0-5=10.9.9.9:7",
    );
    check_shards(
        "[[slots [0 5] nodes [[id a port 7 endpoint nil role master health online]]]]",
        "0-5=10.9.9.9:7",
    );
    check_shards("[[slots [0 5] nodes [[id a port 7 endpoint ? role master health online]]]]", "");
}

#[test]
fn of_two_primaries_in_a_shard_the_healthy_one_owns() {
    check_shards(
        "[[slots [0 5] nodes [[id a port 1 endpoint dead role master health fail] \
          [id b port 2 endpoint alive role master health online]]]]",
        "0-5=alive:2",
    );
    check_shards(
        "[[slots [0 5] nodes [[id a port 1 endpoint dead role master health fail]]]]",
        "0-5=dead:1",
    );
    check_shards("[[slots [0 5] nodes [[id a port 1 endpoint \"\" role master health fail]]]]", "");
}

#[test]
fn shards_of_the_wrong_shape_are_refused() {
    check_shards("[7]", "malformed reply: a shard without nodes");
    check_shards("[[slots [0] nodes []]]", "malformed reply: an odd number of range ends");
    check_shards("[[slots [0 99999] nodes []]]", "malformed reply: a range outside 0..=16383");
    check_shards("[[slots [] nodes [7]]]", "malformed reply: a node without a role");
    check_shards("[[slots [] nodes [[id a]]]]", "malformed reply: a node without a role");
}

#[test]
fn maps_in_resp3_are_read_alike() {
    let reply = b"*1\r\n%2\r\n$5\r\nslots\r\n*2\r\n:0\r\n:5\r\n$5\r\nnodes\r\n*1\r\n%4\r\n\
        $2\r\nid\r\n$2\r\naa\r\n$4\r\nport\r\n:7001\r\n$8\r\nendpoint\r\n$1\r\nx\r\n\
        $4\r\nrole\r\n$6\r\nmaster\r\n";
    let (reply, _) = parse_value(reply).unwrap().unwrap();
    assert_eq!(show(&read_shards(&reply, &asked()).unwrap()), "0-5=x:7001");
}

const NODES: &str = "\
aa1 127.0.0.1:7910@17910,host-a,shard-id=5a myself,master - 0 1796029987000 7 connected 0-99 200 \
[300->-bb2] [301-<-cc3]
bb2 fd01::85:7911@17911,,shard-id=5b master,fail - 1796029982439 179602998143 2 disconnected 100-199
cc3 127.0.0.1:7912@17912 slave aa1 0 1796029987470 7 connected
dd4 :0@0 master,noaddr - 0 0 3 disconnected 500-501
ee5 :0 handshake - 0 0 0 connected
ff6 127.0.0.1:7913 master,fail? - 0 0 4 connected 600-601
";

#[test]
fn node_lines_of_all_versions_are_read() {
    let lines = read_nodes_text(NODES.as_bytes());
    let ids: Vec<_> = lines.iter().map(|line| &*line.id).collect();
    assert_eq!(ids, ["aa1", "bb2", "cc3", "dd4", "ee5", "ff6"]);
    let first = &lines[0];
    assert_eq!(first.hostname.as_deref(), Some("host-a"));
    assert_eq!(first.shard_id.as_deref(), Some("5a"));
    assert!(first.flags.myself && first.flags.primary && first.connected);
    assert_eq!((first.epoch, &*first.slots), (7, &[(0, 99), (200, 200)][..]));
    assert_eq!(first.migrating, [(300, "bb2".into())]);
    assert_eq!(first.importing, [(301, "cc3".into())]);
    assert_eq!(lines[1].endpoint.as_ref().unwrap().to_string(), "fd01::85:7911");
    assert_eq!(lines[1].hostname, None);
    assert!(lines[1].flags.fail && !lines[1].connected);
    assert_eq!(lines[2].primary_id.as_deref(), Some("aa1"));
    assert!(lines[3].endpoint.is_none() && lines[3].flags.noaddr);
    assert!(lines[4].endpoint.is_none() && lines[4].flags.handshake);
    assert!(lines[5].flags.pfail && !lines[5].flags.fail);
}

#[test]
fn hostile_node_lines_are_skipped_or_say_nothing() {
    let text = b"\n\r\n \nx\naa 1:1@1 master - 0 0 -5 connected 0-5\n\xff\xfe 1 2 3 4 5 6 7\n\
        bb h:1@2 master - 0 0 99999999999999999999 connected\n\
        ok h:1@2 master - 0 0 1 connected 5-3 16384 0-16384 -1 7-x [ [5 [5->-] [x->-aa] [] ] 8\n";
    let lines = read_nodes_text(text);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].slots, [(8, 8)]);
    assert!(lines[0].migrating.is_empty() && lines[0].importing.is_empty());
}

#[test]
fn lines_give_epochs_and_correct_owners() {
    let reply = value(
        "[[slots [0 99 200 200] nodes [[id aa1 port 1 endpoint a role master health online] \
           [id cc3 port 3 endpoint c role replica health online]]]\
          [slots [100 199 600 601] nodes [[id bb2 port 2 endpoint b role master health online]]]\
          [slots [500 501] nodes [[id dd4 port 4 endpoint d role master health online]]]\
          [slots [] nodes [[id ff6 port 6 endpoint f role master health online]]]]",
    );
    let mut topology = read_shards(&reply, &asked()).unwrap();
    topology.take_lines(&read_nodes_text(NODES.as_bytes()));
    assert_eq!(show(&topology), "0-99=a:1 100-199=b:2 200-200=a:1 600-601=f:6 ~c:3");
    let facts: Vec<_> =
        topology.nodes.iter().map(|node| (&*node.id, node.epoch, node.healthy)).collect();
    assert_eq!(
        facts,
        [
            ("aa1", 7, true),
            ("bb2", 2, false),
            ("cc3", 7, true),
            ("dd4", 3, false),
            ("ff6", 4, true)
        ]
    );
    assert_eq!(topology.epoch, 7);
}

#[test]
fn replica_whose_line_claims_slots_is_a_primary_and_follows_nobody() {
    let reply = value(
        "[[slots [0 99] nodes [[id aa1 port 1 endpoint a role master health online] \
           [id cc3 port 3 endpoint c role replica health online]]]]",
    );
    let mut topology = read_shards(&reply, &asked()).unwrap();
    let promoted = "cc3 c:3@4 master - 0 0 9 connected 0-99";
    topology.take_lines(&read_nodes_text(promoted.as_bytes()));
    let owner = topology.owners[0];
    assert_eq!(topology.owner(0).map(|node| (&*node.id, node.role)), Some(("cc3", Role::Primary)));
    assert_eq!(topology.replicas_of(owner).count(), 0);
}

#[test]
fn cluster_info_tells_state_and_epoch() {
    #[track_caller]
    fn check(text: &str, ok: bool, epoch: u64) {
        assert_eq!(read_cluster_info(text.as_bytes()), ClusterInfo { ok, epoch });
    }
    check("cluster_state:ok\r\ncluster_slots_assigned:5\r\ncluster_current_epoch:12\r\n", true, 12);
    check("cluster_state:fail\r\ncluster_current_epoch:x\r\n", false, 0);
    check("", false, 0);
}

#[test]
fn replies_cut_or_bent_anywhere_never_panic() {
    let reply = b"*1\r\n*4\r\n:0\r\n:5460\r\n*4\r\n$4\r\nhost\r\n:7001\r\n$2\r\naa\r\n*0\r\n*3\r\n$-1\r\n:1\r\n$0\r\n\r\n";
    for at in 0..reply.len() {
        for byte in [0u8, b'-', b'9', b'*', b'$', b':', b'\r', 0xff] {
            let mut bent = reply.to_vec();
            bent[at] = byte;
            if let Ok(Some((value, _))) = parse_value(&bent) {
                let _ = read_slots(&value, &asked());
                let _ = read_shards(&value, &asked());
            }
        }
    }
    for at in 0..NODES.len() {
        let mut bent = NODES.as_bytes().to_vec();
        bent[at] = b'-';
        read_nodes_text(&bent);
        read_nodes_text(&bent[..at]);
    }
}
