//! Whole configurations: what is taken, and the text of every mistake.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::*;

/// The files that exist in these tests.
fn read_file(files: &[(&str, &str)], path: &Path) -> io::Result<String> {
    let found = files.iter().find(|(name, _)| Path::new(name) == path);
    found.map(|(_, text)| (*text).to_string()).ok_or_else(|| io::Error::other("no such file"))
}

fn load_all(
    arguments: &[&str],
    variables: &[(&str, &str)],
    files: &[(&str, &str)],
) -> Result<Invocation, Problems> {
    load(
        arguments.iter().map(OsString::from),
        variables.iter().map(|(name, value)| (name.into(), value.into())),
        &|path| read_file(files, path),
    )
}

#[track_caller]
fn taken(arguments: &[&str], variables: &[(&str, &str)], files: &[(&str, &str)]) -> Config {
    match load_all(arguments, variables, files) {
        Ok(Invocation::Run(config)) => config,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(arguments: &[&str], variables: &[(&str, &str)], file: &str, expected: &[&str]) {
    let files = [("ringway.toml", file), ("empty", ""), ("secret", "s3\n")];
    match load_all(arguments, variables, &files) {
        Err(problems) => {
            let lines: Vec<String> = problems.0.iter().map(Problem::to_string).collect();
            assert_eq!(lines, expected);
        }
        Ok(config) => panic!("{config:?}"),
    }
}

const PLAIN: [&str; 4] = ["--listen", "127.0.0.1:6379", "--node", "a:7000"];

#[test]
fn flags_alone_make_one_pool_with_the_defaults() {
    let config = taken(&[&PLAIN[..], &["--node=b:7001"]].concat(), &[], &[]);
    assert_eq!(config.process, Process::default());
    let [pool] = &config.pools[..] else { panic!("{:?}", config.pools) };
    assert_eq!(pool.nodes.iter().map(|n| n.port).collect::<Vec<_>>(), [7000, 7001]);
    assert_eq!(pool.request_timeout_ms, 5000);
    assert!(pool.split_reads && !pool.ignore_select);
}

#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let files = [("ringway.toml", "maxclients = 1\ndrain_timeout_ms = 1\nlog_level = \"debug\"\n")];
    let flags = [&PLAIN[..], &["--config=ringway.toml", "--maxclients", "3"]].concat();
    let variables = [("RINGWAY_MAXCLIENTS", "2"), ("RINGWAY_DRAIN_TIMEOUT_MS", "2")];
    let process = taken(&flags, &variables, &files).process;
    assert_eq!(process.maxclients, 3);
    assert_eq!(process.drain_timeout_ms, 2);
    assert_eq!(process.log_level, LogLevel::Debug);
    assert_eq!(process.ring_entries, 4096);
}

#[test]
fn last_flag_wins_and_switches_need_no_value() {
    let flags = ["--maxclients=1", "--maxclients=2", "--ignore-select", "--split-writes=off"];
    let config = taken(&[&PLAIN[..], &flags].concat(), &[], &[]);
    assert_eq!(config.process.maxclients, 2);
    assert!(config.pools[0].ignore_select && !config.pools[0].split_writes);
}

#[test]
fn variables_alone_make_a_pool() {
    let variables = [("RINGWAY_LISTEN", "[::]:6379"), ("RINGWAY_NODES", "a:1, b:2")];
    let config = taken(&[], &variables, &[]);
    assert_eq!(config.pools[0].nodes.len(), 2);
}

#[test]
fn foreign_variables_are_warned_about_at_most() {
    let variables = [
        ("RINGWAY_PORT", "tcp://10.0.0.1:6379"),
        ("RINGWAY_SERVICE_HOST", "10.0.0.1"),
        ("RINGWAY_MAXCLIENT", "1"),
        ("RINGWAY_REACTORS", ""),
        ("HOME", "/"),
    ];
    let config = taken(&PLAIN, &variables, &[]);
    assert_eq!(
        config.warnings,
        [
            "environment variable RINGWAY_MAXCLIENT is not an option; did you mean RINGWAY_MAXCLIENTS?"
        ]
    );
}

const TWO_POOLS: &str = r#"
cpus = [0, 2]
client_typo = 1

[[pool]]
name = "cache"
listen = ["127.0.0.1:6379", "[::1]:6379"]
nodes = ["10.0.0.1:7000"]
client_output_limit = "1gb"
[[pool.user]]
name = "app"
password_file = "app.secret"
[pool.address_map]
"10.0.0.1:7000" = "[2001:db8::1]:17000"

[[pool]]
listen = "127.0.0.1:6380"
nodes = "b:7000"
"#;

#[test]
fn file_with_two_pools_is_taken_whole() {
    let text = TWO_POOLS.replace("client_typo = 1", "");
    let files = [("etc/ringway.toml", text.as_str()), ("etc/app.secret", "s3cret\nnote\n")];
    let config = taken(&["--config", "etc/ringway.toml"], &[], &files);
    assert_eq!(config.process.cpus, Cpus(vec![0, 2]));
    let [cache, second] = &config.pools[..] else { panic!("{:?}", config.pools) };
    assert_eq!((cache.name.as_str(), second.name.as_str()), ("cache", "pool-2"));
    assert_eq!(cache.listen.len(), 2);
    assert_eq!(cache.client_output_limit, 1 << 30);
    assert_eq!(cache.users[0].password.reveal(), b"s3cret");
    assert_eq!(&*cache.address_map[0].1.host, "2001:db8::1");
}

#[test]
fn every_mistake_is_told_at_once_with_its_line() {
    refused(
        &["--config=ringway.toml", "--reactors=x", "--lissten=1", "--log-level", "loud"],
        &[("RINGWAY_MAXCLIENTS", "0")],
        &TWO_POOLS.replace("\"1gb\"", "true").replace("b:7000", "b"),
        &[
            "--lissten: no such option; did you mean --listen?",
            "RINGWAY_MAXCLIENTS \"0\": wants a number from 1 to 1000000",
            "--reactors \"x\": wants a number from 0 to 1024",
            "--log-level \"loud\": wants error, warn, info or debug",
            "ringway.toml:3: client_typo: no such option",
            "ringway.toml:9: client_output_limit = \"true\": wants a size from 64 KiB to 64 GiB",
            "ringway.toml:10: password_file = \"app.secret\": cannot be read: no such file",
            "ringway.toml:18: nodes = \"b\": wants HOST:PORT (a name or an address, no URL); several with commas",
        ],
    );
}

#[test]
fn options_in_the_wrong_place_say_where_they_belong() {
    refused(
        &["--config=ringway.toml"],
        &[],
        "nodes = \"a:1\"\n[[pool]]\nlisten = \"0.0.0.0:1\"\nnodes = \"a:1\"\nmaxclients = 1\n",
        &[
            "ringway.toml:1: nodes: belongs in a [[pool]]",
            "ringway.toml:5: maxclients: is one for the process: write it above the first [[pool]]",
        ],
    );
}

#[test]
fn pool_flags_beside_a_file_with_pools_are_refused() {
    refused(
        &["--config=ringway.toml", "--node=c:1"],
        &[("RINGWAY_REQUEST_TIMEOUT_MS", "1")],
        "[[pool]]\nlisten = \"0.0.0.0:1\"\nnodes = \"a:1\"\n",
        &[
            "RINGWAY_REQUEST_TIMEOUT_MS \"1\": describes a pool, and the file has [[pool]]: write it there",
            "--node \"c:1\": describes a pool, and the file has [[pool]]: write it there",
        ],
    );
}

#[test]
fn nothing_given_says_what_is_missing() {
    refused(
        &[],
        &[],
        "",
        &[
            "listen: missing; give --listen IP:PORT, where clients connect",
            "nodes: missing; give --node HOST:PORT, once or more: some nodes of the cluster",
        ],
    );
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let flags = [
        "--reactors=2",
        "--cpus=0,1",
        "--client-output-soft=1gb",
        "--announce=a:1,b:1",
        "--announce=a:1",
        "--node-user=u",
        "--password=x",
        "--password-file=secret",
    ];
    refused(
        &[&PLAIN[..], &flags].concat(),
        &[],
        "",
        &[
            "--cpus: give either reactors or cpus: cpus already says how many",
            "--password-file: give either password or password_file",
            "--client-output-soft: client_output_soft (1073741824) must not be above client_output_limit (268435456)",
            "--announce \"a:1\": is there twice: each address is one node to clients",
            "--node-user: needs node_password or node_password_file",
        ],
    );
}

#[test]
fn pools_that_meet_are_refused() {
    let pool = "[[pool]]\nname = \"a\"\nlisten = \"0.0.0.0:1\"\nnodes = \"a:1\"\n";
    refused(
        &["--config=ringway.toml"],
        &[],
        &[pool, pool].concat(),
        &[
            "ringway.toml:6: name = \"a\": another pool has this name",
            "ringway.toml:7: listen = \"0.0.0.0:1\": another pool listens there",
        ],
    );
}

#[test]
fn words_and_files_that_do_not_exist_are_refused() {
    refused(&["chekc"], &[], "", &["chekc: no such command; there are 'check' and 'top'"]);
    let expected = "--config \"nowhere\": cannot be read: no such file";
    refused(&["--config=nowhere"], &[], "", &[expected]);
    let expected = "RINGWAY_CONFIG \"nowhere\": cannot be read: no such file";
    refused(&[], &[("RINGWAY_CONFIG", "nowhere")], "", &[expected]);
}

#[test]
fn one_mistake_is_not_told_twice() {
    let pool = "[[pool]]\nname = \"a b\"\nlisten = \"0.0.0.0:1\"\nnodes = \"a:1\"\n";
    let wanted = "wants 1 to 64 letters, digits, '-', '_' or '.'";
    refused(
        &["--config=ringway.toml"],
        &[],
        &[pool, "node_user = \"u\"\nnode_password_file = \"n\"\n", &pool.replace(":1", ":2")]
            .concat(),
        &[
            &format!("ringway.toml:2: name = \"a b\": {wanted}"),
            "ringway.toml:6: node_password_file = \"n\": cannot be read: no such file",
            &format!("ringway.toml:8: name = \"a b\": {wanted}"),
        ],
    );
}

#[test]
fn broken_syntax_names_the_line_and_not_its_text() {
    let text = "maxclients = 1\npassword = \"canary\nlog_level = \"info\"\n";
    let files = [("ringway.toml", text)];
    let problems = load_all(&["--config=ringway.toml"], &[], &files).unwrap_err().to_string();
    assert!(problems.contains("ringway.toml:2"), "{problems}");
    assert!(!problems.contains("canary"), "{problems}");
}

#[test]
fn secrets_show_up_in_no_message_and_no_debug_print() {
    let long = "canary".repeat(100);
    let text = format!(
        "[[pool]]\nlisten = \"0.0.0.0:1\"\nnodes = [\"redis://:canary@h:1\"]\npassword = \"{long}\"\n\
         node_password = [\"canary\"]\n[[pool.user]]\nname = \"u\"\npassword = \"{long}\"\n"
    );
    let files = [("ringway.toml", text.as_str())];
    let problems = load_all(&["--config=ringway.toml"], &[], &files).unwrap_err();
    assert_eq!(problems.0.len(), 4, "{problems}");
    assert!(!problems.to_string().contains("canary"), "{problems}");
    assert!(!format!("{problems:?}").contains("canary"));

    let config = taken(&[&PLAIN[..], &["--password=canary"]].concat(), &[], &[]);
    assert!(!format!("{config:?}").contains("canary"));
    assert_eq!(config.warnings.len(), 1);
}

#[test]
fn help_version_and_check_are_understood() {
    let verb = |arguments: &[&str]| load_all(arguments, &[], &[]);
    assert_eq!(verb(&["--help"]), Ok(Invocation::Help));
    assert_eq!(verb(&["-h", "--nonsense"]), Ok(Invocation::Help));
    assert_eq!(verb(&["--version"]), Ok(Invocation::Version));
    assert!(matches!(verb(&["check"]), Ok(Invocation::Check(config)) if config.pools.is_empty()));
    let all = [&["check"], &PLAIN[..]].concat();
    assert!(matches!(verb(&all), Ok(Invocation::Check(config)) if config.pools.len() == 1));
}

#[test]
fn a_file_that_is_too_long_is_refused_before_it_is_read() {
    let pool = "[[pool]]\nlisten = \"127.0.0.1:1\"\nnodes = \"a:1\"\n";
    let most = crate::limits::CONFIG_BYTES_MAX as usize;
    let longest = format!("{pool}#{}", " ".repeat(most - pool.len() - 1));
    taken(&["--config=x"], &[], &[("x", &longest)]);
    let expected = ["--config \"ringway.toml\": cannot be read: it is over 1 MiB"];
    refused(&["--config=ringway.toml"], &[], &format!("{longest} "), &expected);
}

#[test]
fn more_pools_than_anybody_has_are_refused_at_once() {
    let file = "[[pool]]\n".repeat(crate::limits::POOLS_MAX + 1);
    let expected = ["ringway.toml:1: pool: more than 256 pools"];
    refused(&["--config=ringway.toml"], &[], &file, &expected);
}

#[test]
fn odd_words_and_names_are_told_in_one_line() {
    refused(
        &[&PLAIN[..], &[""]].concat(),
        &[],
        "",
        &["'': no such command; there are 'check' and 'top'"],
    );
    let expected = ["--a\\nb\\u{1b}[2J: no such option"];
    refused(&[&PLAIN[..], &["--a\nb\u{1b}[2J=c"]].concat(), &[], "", &expected);
}

#[test]
fn admin_address_may_be_off_and_an_open_one_is_warned_of() {
    let admin = |text: &str| {
        let flag = format!("--admin-listen={text}");
        let arguments = ["--listen=127.0.0.1:1", "--node=a:1", &flag].map(std::ffi::OsString::from);
        match load(arguments, [], &|_| unreachable!()) {
            Ok(Invocation::Run(config)) => {
                Ok((config.process.admin_listen.0, config.warnings.len()))
            }
            Ok(other) => panic!("{other:?}"),
            Err(problems) => Err(problems.to_string()),
        }
    };
    assert_eq!(admin("off"), Ok((None, 0)));
    assert_eq!(admin(""), Ok((None, 0)));
    assert_eq!(admin("[::1]:9421"), Ok((Some("[::1]:9421".parse().unwrap()), 0)));
    assert_eq!(admin("0.0.0.0:80"), Ok((Some("0.0.0.0:80".parse().unwrap()), 1)));
    for wrong in ["9421", "127.0.0.1", "127.0.0.1:0", "localhost:9421"] {
        assert!(admin(wrong).unwrap_err().contains("wants IP:PORT, or off"), "{wrong}");
    }
}
