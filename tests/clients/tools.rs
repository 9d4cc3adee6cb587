//! redis-cli and redis-benchmark (package redis-tools) through the proxy.
//!
//! Not here: `redis-cli --pipe`, which is case P2.

use std::process::Command;

use crate::support::process::Folder;
use crate::{check, target};

/// redis-cli as a script uses it: no terminal, arguments or lines on stdin.
#[test]
fn redis_cli_works() {
    let target = target();
    let port = target.port.to_string();
    let cli = |args: &[&str]| check(Command::new("redis-cli").args(["-p", &port]).args(args));
    assert_eq!(cli(&["SET", "cli:a", "two words"]), "OK\n");
    assert_eq!(cli(&["GET", "cli:a"]), "two words\n");
    assert_eq!(cli(&["--no-raw", "GET", "cli:absent"]), "(nil)\n");
    assert_eq!(cli(&["MSET", "cli:a", "1", "cli:b", "2", "cli:c", "3"]), "OK\n");
    assert_eq!(cli(&["MGET", "cli:a", "cli:b", "cli:c"]), "1\n2\n3\n");
    assert_eq!(cli(&["DEL", "cli:a", "cli:b", "cli:c"]), "3\n");
    assert_eq!(cli(&["HSET", "cli:h", "f", "v"]), "1\n");
    assert_eq!(cli(&["-3", "--no-raw", "HGETALL", "cli:h"]), "1# \"f\" => \"v\"\n");
    assert_eq!(cli(&["--no-raw", "-3", "ZSCORE", "cli:none", "m"]), "(nil)\n");
    assert!(cli(&["FOO"]).starts_with("ERR unknown command"));
    assert!(cli(&["INFO", "server"]).contains("redis_mode:standalone"));
    assert_eq!(cli(&["-n", "0", "PING"]), "PONG\n");
    assert_eq!(cli(&["-r", "3", "INCR", "cli:n"]), "1\n2\n3\n");
    assert_eq!(cli(&["--eval", "/dev/null", "cli:k"]), "\n");
    let lines = format!("printf 'SET cli:x 1\\nINCR cli:x\\nGET cli:x\\n' | redis-cli -p {port}");
    assert_eq!(check(Command::new("sh").args(["-c", &lines])), "OK\n2\n2\n");
    let value = format!("printf 'a\\r\\nb' | redis-cli -p {port} -x SET cli:stdin");
    assert_eq!(check(Command::new("sh").args(["-c", &value])), "OK\n");
    assert_eq!(cli(&["STRLEN", "cli:stdin"]), "4\n");
}

/// redis-cli with a terminal (of `script`): it asks COMMAND DOCS for its hints.
#[test]
fn redis_cli_starts_on_a_terminal() {
    let target = target();
    let folder = Folder::new("terminal");
    let shown = folder.file("shown").display().to_string();
    // What is typed before it reads is lost, so it is typed until it is answered. A terminal without
    // a size makes redis-cli ask for it, and nobody would answer.
    let typed = format!(
        "type_until() {{ n=0; until grep -q \"$2\" {shown} || [ $n -ge 100 ]; do printf \"$1\"; \
         sleep 0.5; n=$((n + 1)); done; }}; : >{shown}; (type_until 'SET cli:tty v\\r' OK; \
         type_until 'GET cli:tty\\r' '\"v\"'; printf 'QUIT\\r'; sleep 0.5; printf 'QUIT\\r') | \
         script -qefc 'stty cols 80 rows 24; redis-cli -p {}' {shown}",
        target.port
    );
    let text = check(Command::new("sh").args(["-c", &typed]));
    assert!(text.contains("\"v\""), "{text}");
}

#[test]
fn redis_benchmark_runs_its_tests() {
    let target = target();
    let port = target.port.to_string();
    let tests =
        "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";
    for extra in [
        vec!["-c", "50"],
        vec!["-c", "50", "-P", "16"],
        vec!["-c", "10", "-r", "100000", "-P", "4"],
    ] {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-n", "2000", "-t", tests, "--csv"]).args(&extra);
        let text = check(&mut command);
        assert!(!text.to_lowercase().contains("error"), "{text}");
        let lines = text.lines().filter(|line| line.starts_with('"')).count();
        assert!(lines >= 16, "only {lines} results with {extra:?}:\n{text}");
    }
    let mut own = Command::new("redis-benchmark");
    own.args(["-p", &port, "-n", "2000", "-r", "1000", "--csv", "MGET"]);
    own.args(["key:__rand_int__", "other:__rand_int__", "third:__rand_int__"]);
    assert!(!check(&mut own).to_lowercase().contains("error"));
    let mut threads = Command::new("redis-benchmark");
    threads.args(["-p", &port, "-n", "2000", "--threads", "2", "-t", "set,get", "-q", "-3"]);
    check(&mut threads);
}
