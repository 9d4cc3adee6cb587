//! One `Config` from all sources, and the mistakes that no single option shows.
//!
//! Not here: taking the sources apart (`arguments`, `file`), single values (`value`).

use std::io;
use std::path::{Path, PathBuf};

use super::arguments::{Arguments, Variables, Verb};
use super::file::{self, File, FilePool};
use super::options::{self, Pool, Process, Scope, User};
use super::problem::{Problem, Problems, Source};
use super::value::{Raw, Value, parse_endpoint};
use super::{Config, Given, Invocation, ReadFile};
use crate::limits::{ANNOUNCED_MAX, CONFIG_BYTES_MAX};
use crate::secret::Secret;

pub fn assemble(
    arguments: Arguments,
    variables: Variables,
    read_file: ReadFile,
) -> Result<Invocation, Problems> {
    let verb = arguments.verb;
    let flag = Source::Flag("--config".to_string());
    let variable = Source::Environment("RINGWAY_CONFIG".to_string());
    let path = arguments.config_file.map(|path| (path, flag));
    let path = path.or(variables.config_file.map(|path| (path, variable)));
    let mut work = Assembly {
        read_file,
        directory: path.as_ref().and_then(|(path, _)| Path::new(path).parent()).map(Path::to_owned),
        // Something is not understood, so what seems to be missing may be just that.
        partly_read: !arguments.problems.is_empty(),
        problems: arguments.problems,
        warnings: variables.warnings,
    };
    work.problems.extend(variables.problems);
    let file = work.file(path.as_ref().map(|(path, source)| (path.as_str(), source)));

    // Later ones win, so the order here is the order of precedence.
    let from_outside: Vec<Given> = variables.given.into_iter().chain(arguments.given).collect();
    let (for_pool, for_process): (Vec<Given>, Vec<Given>) = from_outside
        .into_iter()
        .partition(|given| options::find(given.name).is_some_and(|row| row.scope == Scope::Pool));
    let process = work.process(file.given.into_iter().chain(for_process).collect());
    let pools = work.pools(file.pools, for_pool, verb);

    // As people read a file; what stands elsewhere keeps its order before it.
    work.problems.sort_by_key(|problem| match problem.source {
        Source::File { line, .. } => line,
        Source::Flag(_) | Source::Environment(_) | Source::Nowhere => 0,
    });
    if work.problems.is_empty() {
        let config = Config { process, pools, warnings: work.warnings };
        Ok(match verb {
            Verb::Check => Invocation::Check(config),
            Verb::Top => Invocation::Top(config),
            Verb::Run | Verb::Version | Verb::Help => Invocation::Run(config),
        })
    } else {
        Err(Problems(work.problems))
    }
}

struct Assembly<'a> {
    read_file: ReadFile<'a>,
    /// Where the configuration file is: its relative paths start there.
    directory: Option<PathBuf>,
    partly_read: bool,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Assembly<'_> {
    /// A file is untrusted input too: an endless one must not be taken in.
    fn read(&self, path: &Path) -> io::Result<String> {
        let text = (self.read_file)(path)?;
        if text.len() as u64 > CONFIG_BYTES_MAX {
            return Err(super::too_long());
        }
        Ok(text)
    }

    fn file(&mut self, path: Option<(&str, &Source)>) -> File {
        let Some((path, source)) = path else { return File::default() };
        match self.read(Path::new(path)) {
            Ok(text) => {
                let mut file = file::read(path, &text);
                self.partly_read |= !file.problems.is_empty() && file.pools.is_empty();
                self.problems.append(&mut file.problems);
                file
            }
            Err(error) => {
                let text = format!("cannot be read: {error}");
                self.complain(source.clone(), "", Some(path), text);
                self.partly_read = true;
                File::default()
            }
        }
    }

    fn process(&mut self, given: Vec<Given>) -> Process {
        let mut process = Process::default();
        for one in &given {
            if let Some(Err(wanted)) = process.set(one.name, &one.raw) {
                self.problems.push(one.problem(format!("wants {wanted}")));
            }
        }
        let path = source_of(&given, "handover_socket");
        if let (Source::File { .. }, Some(directory)) = (&path, &self.directory) {
            process.handover_socket = process.handover_socket.map(|path| directory.join(path));
        }
        if process.reactors != 0 && !process.cpus.0.is_empty() {
            let text = "give either reactors or cpus: cpus already says how many";
            self.complain(source_of(&given, "cpus"), "cpus", None, text.to_string());
        }
        if let Some(address) = process.admin_listen.0.filter(|address| !address.ip().is_loopback())
        {
            let text = "whoever reaches it may read it, without a password";
            self.warnings.push(format!("admin_listen = {address}: {text}"));
        }
        process
    }

    fn pools(&mut self, from_file: Vec<FilePool>, outside: Vec<Given>, verb: Verb) -> Vec<Pool> {
        let mut pools = Vec::new();
        if from_file.is_empty() {
            if matches!(verb, Verb::Check | Verb::Top) && outside.is_empty() {
                return pools;
            }
            let pool = self.pool(Source::Nowhere, &outside, None);
            pools.push(pool);
        } else {
            for one in &outside {
                let text = "describes a pool, and the file has [[pool]]: write it there";
                self.problems.push(one.problem(text.to_string()));
            }
            for (index, one) in from_file.into_iter().enumerate() {
                let source = one.source.clone();
                let given = one.given.clone();
                let mut pool = self.pool(source, &given, Some(one));
                if !has(&given, "name") && index > 0 {
                    pool.name = format!("pool-{}", index + 1);
                }
                self.relate_pools(&pool, &pools, &given);
                pools.push(pool);
            }
        }
        pools
    }

    fn pool(&mut self, at: Source, given: &[Given], file: Option<FilePool>) -> Pool {
        let mut pool = Pool::default();
        for one in given {
            if let Some(Err(wanted)) = pool.set(one.name, &one.raw) {
                self.problems.push(one.problem(format!("wants {wanted}")));
            }
            self.warn_about_secret(one);
        }
        self.require(&at, given, "listen", "IP:PORT, where clients connect");
        self.require(&at, given, "nodes", "HOST:PORT, once or more: some nodes of the cluster");
        let read = self.password(given, "password", "password_file", pool.password_file.as_deref());
        pool.password = read.or(pool.password);
        let path = pool.node_password_file.as_deref();
        let read = self.password(given, "node_password", "node_password_file", path);
        pool.node_password = read.or(pool.node_password);
        self.relate(&pool, given);
        if let Some(file) = file {
            self.users(&mut pool, &file);
            self.address_map(&mut pool, &file);
        }
        pool
    }

    fn require(&mut self, at: &Source, given: &[Given], name: &str, what: &str) {
        if self.partly_read || has(given, name) {
            return;
        }
        let text = match (at, options::find(name)) {
            (Source::Nowhere, Some(row)) => format!("missing; give {} {what}", row.flag()),
            _ => format!("missing; give {what}"),
        };
        self.complain(at.clone(), name, None, text);
    }

    fn warn_about_secret(&mut self, given: &Given) {
        let secret = options::find(given.name).is_some_and(|row| row.secret);
        if let (true, Source::Flag(flag)) = (secret, &given.source) {
            let text =
                format!("{flag} shows the password to everyone on this host: use {flag}-file");
            self.warnings.push(text);
        }
    }

    /// The password out of `path`, if there is one.
    fn password(
        &mut self,
        given: &[Given],
        plain: &str,
        file: &'static str,
        path: Option<&Path>,
    ) -> Option<Secret> {
        let path = path?;
        let source = source_of(given, file);
        if has(given, plain) {
            let text = format!("give either {plain} or {file}");
            self.complain(source.clone(), file, None, text);
        }
        self.read_password(source, file, path)
    }

    fn read_password(&mut self, source: Source, option: &str, path: &Path) -> Option<Secret> {
        let relative_to = match (&source, &self.directory) {
            (Source::File { .. }, Some(directory)) => directory.join(path),
            _ => path.to_owned(),
        };
        let shown = path.display().to_string();
        match self.read(&relative_to) {
            Ok(text) => {
                let line = text.lines().next().unwrap_or_default().to_string();
                let secret = Secret::read(&Raw::Text(line), options::no_range());
                if secret.is_err() {
                    let text = "its first line should be a password of 1 to 512 bytes".to_string();
                    self.complain(source, option, Some(&shown), text);
                }
                secret.ok()
            }
            Err(error) => {
                self.complain(source, option, Some(&shown), format!("cannot be read: {error}"));
                None
            }
        }
    }

    /// Options of one pool that lean on one another.
    fn relate(&mut self, pool: &Pool, given: &[Given]) {
        if pool.client_output_soft > pool.client_output_limit {
            let soft = has(given, "client_output_soft");
            let named = if soft { "client_output_soft" } else { "client_output_limit" };
            let text = format!(
                "client_output_soft ({}) must not be above client_output_limit ({})",
                pool.client_output_soft, pool.client_output_limit
            );
            self.complain(source_of(given, named), named, None, text);
        }
        let twice =
            (1..pool.announce.len()).find(|&n| pool.announce[..n].contains(&pool.announce[n]));
        if let Some(n) = twice {
            let (source, value) = (source_of(given, "announce"), pool.announce[n].to_string());
            let text = "is there twice: each address is one node to clients".to_string();
            self.complain(source, "announce", Some(&value), text);
        }
        if pool.announce.len() > ANNOUNCED_MAX {
            let text = format!("has more than {ANNOUNCED_MAX} addresses");
            self.complain(source_of(given, "announce"), "announce", None, text);
        }
        // A file that could not be read has its own line.
        let password_given = has(given, "node_password") || has(given, "node_password_file");
        if pool.node_user.is_some() && !password_given {
            let text = "needs node_password or node_password_file".to_string();
            self.complain(source_of(given, "node_user"), "node_user", None, text);
        }
    }

    fn users(&mut self, pool: &mut Pool, file: &FilePool) {
        for user in &file.users {
            let at = user.source.clone();
            let Some(name) = user.name.clone().filter(|name| !name.is_empty()) else {
                self.complain(at, "user", None, "needs a name".to_string());
                continue;
            };
            let taken = pool.users.iter().any(|other| other.name == name)
                || (name == "default" && pool.password.is_some());
            if taken {
                let text = "this user is already there".to_string();
                self.complain(at.clone(), "user", Some(&name), text);
            }
            let password = match (&user.password, &user.password_file) {
                (Some(text), None) => Secret::read(&Raw::Text(text.clone()), options::no_range())
                    .map_err(|wanted| {
                        self.complain(at, "password", None, format!("wants {wanted}"));
                    })
                    .ok(),
                (None, Some(path)) => self.read_password(at, "password_file", Path::new(path)),
                _ => {
                    let text = "needs either password or password_file".to_string();
                    self.complain(at, "user", Some(&name), text);
                    None
                }
            };
            pool.users.extend(password.map(|password| User { name, password }));
        }
    }

    fn address_map(&mut self, pool: &mut Pool, file: &FilePool) {
        for (announced, reachable, source) in &file.address_map {
            match (parse_endpoint(announced), parse_endpoint(reachable)) {
                (Some(from), Some(to)) => pool.address_map.push((from, to)),
                _ => {
                    let value = Raw::Text(format!("{announced} = {reachable}")).show();
                    let text = "wants HOST:PORT on both sides".to_string();
                    self.complain(source.clone(), "address_map", Some(&value), text);
                }
            }
        }
    }

    /// Pools share the process: their names and addresses must not meet.
    fn relate_pools(&mut self, pool: &Pool, earlier: &[Pool], given: &[Given]) {
        // A name that was refused left the default in its place.
        let written = match given.iter().rfind(|one| one.name == "name") {
            Some(one) => one.raw.show() == pool.name,
            None => true,
        };
        if written && earlier.iter().any(|other| other.name == pool.name) {
            let text = "another pool has this name".to_string();
            self.complain(source_of(given, "name"), "name", Some(&pool.name), text);
        }
        for address in &pool.listen {
            if earlier.iter().any(|other| other.listen.contains(address)) {
                let text = "another pool listens there".to_string();
                let value = address.to_string();
                self.complain(source_of(given, "listen"), "listen", Some(&value), text);
            }
        }
    }

    fn complain(&mut self, source: Source, option: &str, value: Option<&str>, text: String) {
        let value = value.map(str::to_string);
        self.problems.push(Problem { source, option: option.to_string(), value, text });
    }
}

fn has(given: &[Given], name: &str) -> bool {
    given.iter().any(|one| one.name == name)
}

/// Where an option's last value was given.
fn source_of(given: &[Given], name: &str) -> Source {
    let last = given.iter().rev().find(|one| one.name == name);
    last.map_or(Source::Nowhere, |one| one.source.clone())
}
