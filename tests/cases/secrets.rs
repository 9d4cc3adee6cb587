//! H24: passwords go nowhere but where they belong: through every path, then looked for in all that
//! the proxy says.
//!
//! Not here: who is let in (`login`).

use std::process::{Command, Stdio};

use crate::bench::{flavour, with};
use crate::support::client::{Client, Got, request};
use crate::support::cluster::{Cluster, Shape};
use crate::support::process::Folder;
use crate::support::proxy::{Proxy, Settings, program};
use crate::support::{millis, seconds, wait_until};

/// All that is secret has this in it.
const CANARY: &str = "CANARY";

/// As many as there are ways in.
const CLIENTS: &str = "CANARY-clients";
const NODES: &str = "CANARY-nodes";
const ADMIN: &str = "CANARY-admin";

/// The nodes want a password, as do the proxy and its admin; the first two are in files.
fn guarded(folder: &Folder) -> (Cluster, Proxy) {
    let args = ["--requirepass", NODES, "--masterauth", NODES].map(Into::into).into();
    let shape =
        Shape { flavour: flavour(), args, password: Some(NODES.into()), ..Shape::default() };
    let cluster = Cluster::start(shape);
    let (clients, nodes) = (folder.file("clients"), folder.file("nodes"));
    std::fs::write(&clients, CLIENTS).expect("a file");
    std::fs::write(&nodes, NODES).expect("a file");
    let text = format!(
        "log_level = \"debug\"\n\n[[pool]]\npassword_file = {clients:?}\nnode_password_file = \
         {nodes:?}\nadmin_user = \"root\"\nallow_config = true\nslowlog_log_slower_than = 1\n\
         slowlog_max_len = 10000\n[[pool.user]]\nname = \"root\"\npassword = \"{ADMIN}\"\n"
    );
    let addresses: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let proxy = Proxy::start_at(&addresses, &Settings::config(&text));
    (cluster, proxy)
}

fn admin(proxy: &Proxy) -> Client {
    let mut client = proxy.client();
    assert_eq!(client.run(&format!("AUTH root {ADMIN}")).text(), "OK");
    wait_until(seconds(10), "the cluster", || client.run("GET x").text() == "nil");
    client
}

/// What carries a password, done right and done wrong.
fn lines(node: &str) -> Vec<String> {
    let (host, port) = node.split_once(':').expect("an address");
    [
        format!("AUTH {CLIENTS}"),
        "AUTH CANARY-wrong".into(),
        "AUTH root CANARY-wrong".into(),
        "AUTH root CANARY-wrong CANARY-many".into(),
        format!("HELLO 3 AUTH root {ADMIN}"),
        "HELLO 3 AUTH root CANARY-wrong".into(),
        "HELLO 2 AUTH root".into(),
        "HELLO 9 AUTH root CANARY-version".into(),
        "HELLO CANARY-version".into(),
        "HELLO 3 AUHT root CANARY-typed".into(),
        format!("AUTH root {ADMIN}"),
        "CONFIG SET masterauth CANARY-master".into(),
        format!("CONFIG SET requirepass {NODES}"),
        "CONFIG SET requirepass CANARY-odd masterauth".into(),
        "CONFIG SET masteruser CANARY masterauth CANARY-2".into(),
        "CONFIG SET no-such-option CANARY-option".into(),
        format!("MIGRATE {host} {port} key 0 100 AUTH CANARY-migrate"),
        format!("MIGRATE {host} {port} key 0 100 AUTH2 user CANARY-migrate"),
        "ACL SETUSER canary on >CANARY-user".into(),
        "ACL SETUSER".into(),
        format!("PROXY NODE {node} CONFIG SET masterauth CANARY-at-node"),
        format!("PROXY NODE {node} ACL SETUSER canary on >CANARY-at-node"),
        format!("PROXY NODE {node} AUTH default CANARY-at-node"),
        format!("PROXY NODE {node} AUTH default {NODES}"),
        format!("PROXY NODE {node} MIGRATE {host} 1 key 0 10 AUTH CANARY-migrate"),
        format!("PROXY NODE {node} HELLO 3 AUTH default CANARY-at-node"),
        "MULTI".into(),
        "AUTH CANARY-multi".into(),
        "CONFIG SET requirepass CANARY-multi".into(),
        "EXEC".into(),
    ]
    .into()
}

/// Everything that can be asked for.
fn all_that_is_told(proxy: &Proxy) -> String {
    let mut root = admin(proxy);
    let mut text = String::new();
    for line in [
        "INFO everything",
        "INFO commandstats",
        "INFO ringway",
        "SLOWLOG GET 100000",
        "CLIENT LIST",
        "CLIENT INFO",
        "LATENCY HISTORY command",
        "LATENCY DOCTOR",
        "ACL WHOAMI",
        "COMMAND COUNT",
        "PROXY NODES",
        "PROXY HELP",
    ] {
        text.push_str(&root.run(line).text());
        text.push('\n');
    }
    text
}

#[test]
fn passwords_are_in_no_log_and_no_answer() {
    let folder = Folder::new("secrets");
    let (cluster, mut proxy) = guarded(&folder);
    let node = cluster.nodes[0].address();
    let mut watching = admin(&proxy);
    assert_eq!(watching.run("MONITOR").text(), "OK");
    let mut answers = String::new();
    for round in 0..3 {
        for line in lines(&node) {
            let mut client = admin(&proxy);
            if round == 1 {
                client = proxy.client();
            }
            if round == 2 {
                // All of them slow, so that they are where slow requests are shown.
                cluster.nodes.iter().for_each(|node| node.process.stop());
            }
            let words: Vec<&str> = line.split(' ').collect();
            client.send(&request(&words));
            if round == 2 {
                std::thread::sleep(millis(15));
                cluster.nodes.iter().for_each(|node| node.process.resume());
            }
            let got = client.read_patiently();
            assert!(!matches!(got, Got::Nothing), "{line} is not answered");
            let Got::Reply(reply) = got else { continue };
            // What a client has sent may come back to it where a server does that as well.
            let own_words = line.starts_with("HELLO 3 AUHT") || line.starts_with("HELLO CANARY");
            if !own_words {
                answers.push_str(&format!("{} {}\n", words[0], reply.text()));
            }
        }
    }
    // Not even whole.
    for bytes in [
        format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{CLIENTS}", CLIENTS.len() + 5),
        format!("*3\r\n$4\r\nAUTH\r\n$4\r\nroot\r\n+{ADMIN}\r\n"),
        format!("*2\r\n$4\r\nAUTH\r\n$x{ADMIN}\r\n"),
        format!("AUTH {ADMIN}\r\nAUTH \"{ADMIN}\r\n"),
        format!("GET /?password={ADMIN} HTTP/1.1\r\nHost: {ADMIN}\r\n\r\n"),
    ] {
        let mut client = proxy.client();
        client.send(bytes.as_bytes());
        let (got, _) = client.read_until_quiet(millis(50));
        answers.push_str(&String::from_utf8_lossy(&got));
    }
    let told = all_that_is_told(&proxy);
    let (watched, _) = watching.read_until_quiet(millis(200));
    let watched = String::from_utf8_lossy(&watched).into_owned();
    let command_line = std::fs::read(format!("/proc/{}/cmdline", proxy.process.id()));
    let command_line = String::from_utf8_lossy(&command_line.expect("readable")).into_owned();
    proxy.process.terminate();
    proxy.process.wait(seconds(15)).expect("it ends");
    let places =
        [proxy.log(), told, watched, command_line, answers].map(|text| text.replace('\n', "\n  "));
    for (place, text) in ["log", "told", "MONITOR", "command line", "answers"].iter().zip(&places) {
        let found: Vec<&str> = text.lines().filter(|line| line.contains(CANARY)).collect();
        assert!(found.is_empty(), "in {place}: {found:?}");
    }
    assert!(
        places[0].contains("draining") && places[1].contains("CONFIG") && places[2].len() > 100
    );
}

/// Arguments are everybody's to read, variables the same user's.
#[test]
fn passwords_in_arguments_and_variables_are_gone_once_read_and_hold_after_a_reload() {
    let folder = Folder::new("start-words");
    let (starter, password) = (folder.file("starter"), "CANARY-in-variable");
    let script = format!(
        "#!/bin/sh\nRINGWAY_NODE_PASSWORD={password} exec {} \"$@\"\n",
        program().display()
    );
    std::fs::write(&starter, script).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&starter, mode).expect("to be run");
    let args = ["--requirepass", password, "--masterauth", password].map(Into::into).into();
    let shape =
        Shape { flavour: flavour(), args, password: Some(password.into()), ..Shape::default() };
    let cluster = Cluster::start(shape);
    let settings = Settings::args(&["--password", "CANARY-in-argument", "--admin-listen=off"]);
    let mut proxy = Proxy::launch_by(&starter, &[cluster.nodes[0].address()], &settings);
    proxy.wait_listening();
    for reloads in 0..2 {
        for name in ["cmdline", "environ"] {
            let words = std::fs::read(format!("/proc/{}/{name}", proxy.process.id()));
            let words = String::from_utf8_lossy(&words.expect("readable")).replace('\0', " ");
            assert!(!words.contains(CANARY), "{name}: {words}");
            let part = if name == "cmdline" { "--password **" } else { "_NODE_PASSWORD=***" };
            assert!(words.contains(part), "{name}: {words}");
        }
        let mut client = proxy.client();
        assert!(client.run("GET x").text().starts_with("-NOAUTH"));
        assert_eq!(client.run("AUTH CANARY-in-argument").text(), "OK");
        wait_until(seconds(10), "the cluster", || client.run("GET x").text() == "nil");
        if reloads == 0 {
            proxy.process.send(rustix::process::Signal::HUP);
            proxy.wait_log("configuration");
        }
    }
    assert!(!proxy.log().contains(CANARY), "{}", proxy.log());
}

#[test]
fn mistakes_in_the_configuration_show_no_password() {
    let folder = Folder::new("secret-mistakes");
    let file = folder.file("ringway.toml");
    let said_of = |args: &[&str], text: &str, variable: &str| {
        std::fs::write(&file, text).expect("a file");
        let mut command = Command::new("timeout");
        command.args(["10"]).arg(program()).args(args).stdin(Stdio::null());
        if !text.is_empty() {
            command.arg("--config").arg(&file);
        }
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
        let output = command.output().expect("the program");
        assert_eq!(output.status.code(), Some(2), "{args:?} {text} {variable}");
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&all).into_owned()
    };
    let long = "CANARY".repeat(200);
    for args in [
        ["--password", &long].as_slice(),
        &["--passwrod", "CANARY"],
        &["--passwrod=CANARY"],
        &["--node-password=CANARY", "--node-password=CANARY-2", "--nonsense"],
        &["--node", "redis://:CANARY@127.0.0.1:7000"],
        &["--node", "user:CANARY@127.0.0.1:7000"],
        &["--listen", "redis://x:CANARY@127.0.0.1:7000"],
        &["--password-file", "/nonexistent", "--password=CANARY"],
    ] {
        let said = said_of(args, "", "");
        assert!(!said.contains(CANARY), "{args:?}: {said}");
    }
    for text in [
        "[[pool]]\npassword = [\"CANARY\"]\n".to_owned(),
        "[[pool]]\npassword = CANARY\n".to_owned(),
        "[[pool]]\npassword = \"CANARY\n".to_owned(),
        "[[pool]]\npasword = \"CANARY\"\n".to_owned(),
        "[[pool]]\npassword = \"CANARY\" \"CANARY\"\n".to_owned(),
        format!("[[pool]]\nnode_password = \"{long}\"\n"),
        "[[pool]]\nnodes = [\"redis://:CANARY@a:7000\"]\n".to_owned(),
        "[[pool]]\n[[pool.user]]\nname = 5\npassword = \"CANARY\"\n".to_owned(),
        "[[pool]]\n[[pool.user]]\nname = \"x\"\npassword = [\"CANARY\"]\n".to_owned(),
        "[[pool]]\n[[pool.user]]\nname = \"x\"\npasword = \"CANARY\"\n".to_owned(),
    ] {
        let said = said_of(&[], &text, "");
        assert!(!said.contains(CANARY), "{text}: {said}");
    }
    for variable in [
        format!("RINGWAY_PASSWORD={long}"),
        "RINGWAY_PASSWROD=CANARY".to_owned(),
        "RINGWAY_NODES=redis://:CANARY@a:7000".to_owned(),
    ] {
        let said = said_of(&[], "", &variable);
        assert!(!said.contains(CANARY), "{variable}: {said}");
    }
}

#[test]
fn a_thousand_wrong_passwords_are_few_lines() {
    let folder = Folder::new("guesses");
    let password = folder.file("password");
    std::fs::write(&password, CLIENTS).expect("a file");
    let path = password.display().to_string();
    let pairs = [("password-file", path.as_str()), ("log-level", "debug")];
    let proxy = Proxy::start_at(&["127.0.0.1:1"], &with(&pairs));
    let mut client = proxy.client();
    for i in 0..1_000 {
        assert!(client.run(&format!("AUTH CANARY-{i}")).text().starts_with("-WRONGPASS"));
    }
    let log = proxy.log();
    assert!(log.lines().count() < 100 && !log.contains(CANARY), "{log}");
}
