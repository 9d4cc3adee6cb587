//! The crate `redis` through the proxy. Argument: port; with a second one, only as a cluster client.
//! Panics at the first mismatch.

use std::collections::{HashMap, HashSet};

use redis::{Commands, Connection, RedisResult};

fn main() {
    let port = std::env::args().nth(1).expect("port");
    if std::env::args().len() > 2 {
        run_cluster(&format!("redis://127.0.0.1:{port}/"));
        return println!("redis-rs cluster ok");
    }
    for parameters in ["", "?protocol=resp3"] {
        let url = format!("redis://127.0.0.1:{port}/{parameters}");
        let client = redis::Client::open(url).expect("URL");
        let mut connection = client.get_connection().expect("connection");
        run(&mut connection).unwrap_or_else(|error| panic!("{parameters:?}: {error}"));
        refuse(&mut connection);
    }
    run_cluster(&format!("redis://127.0.0.1:{port}/"));
    println!("redis-rs ok");
}

/// A18: the cluster client finds one node that owns every slot, or several that share them.
fn run_cluster(url: &str) {
    let client = redis::cluster::ClusterClient::new(vec![url]).expect("URL");
    let mut c = client.get_connection().expect("connection to the cluster face");
    for n in 0..200 {
        let key = format!("rs:face:{n}");
        let _: () = c.set(&key, n).expect("SET");
        assert_eq!(c.get::<_, i64>(&key).expect("GET"), n);
        assert_eq!(c.del::<_, i64>(&key).expect("DEL"), 1);
    }
    let keys = ["{rs}a", "{rs}b"];
    let _: () = c.mset(&[(keys[0], 1), (keys[1], 2)]).expect("MSET");
    assert_eq!(c.mget::<_, Vec<i64>>(&keys).expect("MGET"), [1, 2]);
    assert_eq!(c.del::<_, i64>(&keys).expect("DEL"), 2);
    let script = redis::Script::new("return KEYS[1]");
    assert_eq!(script.key("rs:k").invoke::<String>(&mut c).expect("script"), "rs:k");
}

fn run(c: &mut Connection) -> RedisResult<()> {
    let _: () = redis::cmd("FLUSHALL").query(c)?;
    let _: () = c.set("rs:a", 1)?;
    assert_eq!(c.get::<_, i64>("rs:a")?, 1);
    assert_eq!(c.get::<_, Option<String>>("rs:absent")?, None);
    assert_eq!(c.incr::<_, _, i64>("rs:a", 41)?, 42);

    let keys: Vec<String> = (0..50).map(|i| format!("rs:many:{i}")).collect();
    let pairs: Vec<(&String, &String)> = keys.iter().zip(&keys).collect();
    let _: () = c.mset(&pairs)?;
    assert_eq!(c.mget::<_, Vec<String>>(&keys)?, keys);
    let absent: Vec<Option<String>> = c.mget(&["rs:absent", "rs:many:1"])?;
    assert_eq!(absent, [None, Some("rs:many:1".into())]);
    assert_eq!(c.exists::<_, i64>(&keys)?, 50);
    assert_eq!(c.unlink::<_, i64>(&keys[..10])?, 10);
    assert_eq!(c.del::<_, i64>(&keys)?, 40);

    let _: () = c.hset_multiple("rs:h", &[("a", 1), ("b", 2)])?;
    let hash: HashMap<String, i64> = c.hgetall("rs:h")?;
    assert_eq!(hash, HashMap::from([("a".into(), 1), ("b".into(), 2)]));
    assert_eq!(c.rpush::<_, _, i64>("rs:l", &["a", "b"])?, 2);
    assert_eq!(c.lrange::<_, Vec<String>>("rs:l", 0, -1)?, ["a", "b"]);
    let _: i64 = c.sadd("rs:s", &["x", "y"])?;
    assert_eq!(c.smembers::<_, HashSet<String>>("rs:s")?.len(), 2);
    let _: i64 = c.zadd("rs:z", "m", 1.5)?;
    assert_eq!(c.zscore::<_, _, f64>("rs:z", "m")?, 1.5);
    assert_eq!(c.zrange_withscores::<_, Vec<(String, f64)>>("rs:z", 0, -1)?, [("m".into(), 1.5)]);

    let mut pipe = redis::pipe();
    for i in 0..500 {
        pipe.set(format!("rs:p:{i}"), i).ignore().get(format!("rs:p:{i}"));
    }
    let values: Vec<i64> = pipe.query(c)?;
    assert_eq!(values, (0..500).collect::<Vec<i64>>());

    let script = redis::Script::new("return redis.call('GET', KEYS[1])");
    for i in 0..10 {
        assert_eq!(script.key(format!("rs:p:{i}")).invoke::<i64>(c)?, i);
    }
    let binary: Vec<u8> = (0..=255).collect();
    let _: () = c.set(b"rs:\r\n\0".as_slice(), &binary)?;
    assert_eq!(c.get::<_, Vec<u8>>(b"rs:\r\n\0".as_slice())?, binary);
    let pong: String = redis::cmd("PING").query(c)?;
    assert_eq!(pong, "PONG");
    Ok(())
}

fn refuse(c: &mut Connection) {
    let _: () = c.set("rs:str", "x").expect("SET");
    let error = c.lpush::<_, _, i64>("rs:str", "y").expect_err("wrong type");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    let error = redis::cmd("FOO").query::<String>(c).expect_err("unknown command");
    assert!(error.to_string().contains("unknown command"), "{error}");
    let value: String = c.get("rs:str").expect("GET after errors");
    assert_eq!(value, "x");
}
