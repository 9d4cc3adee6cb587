//! What one client has told us about itself: protocol, login, names, modes.
//!
//! Not here: its place in the order of replies, its queues and its limits (`client`), and what the
//! commands that change it answer (`local`). An idle client costs one of these: it stays small.

use std::net::SocketAddr;

use crate::resp::Version;

/// Whether replies are sent (CLIENT REPLY).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum ReplyMode {
    #[default]
    On,
    /// CLIENT REPLY OFF: nothing is sent until CLIENT REPLY ON.
    Off,
    /// CLIENT REPLY SKIP is the running command: the next one is answered silently.
    SkipNext,
    /// The running command is the one whose reply is left out.
    Skipping,
}

/// The parts of a client's self-description that most clients never give.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Details {
    /// CLIENT SETNAME or HELLO SETNAME. Printable ASCII without spaces.
    pub name: Option<Box<str>>,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: Option<Box<str>>,
    /// CLIENT SETINFO LIB-VER.
    pub lib_ver: Option<Box<str>>,
}

/// No command seen yet (`Session::last_command`).
pub const NO_COMMAND: u16 = u16::MAX;

/// One client, as far as commands may change it or ask for it. Times in ms, monotonic. What is
/// added here and is to last goes along to the next process, too (`parcel`).
#[derive(Clone, Debug)]
pub struct Session {
    /// Unique in the process, over all reactors; what CLIENT ID says.
    pub id: u64,
    pub connected_ms: u64,
    /// When its latest request came.
    pub active_ms: u64,
    pub peer: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// The user it logged in as; None: `default`.
    pub user: Option<Box<str>>,
    pub details: Option<Box<Details>>,
    /// Channels and patterns it is subscribed to, of all kinds.
    pub subscriptions: u32,
    /// Passwords drawn by ACL GENPASS, so that no two are alike.
    pub drawn: u32,
    /// Index of its latest command in `command::COMMANDS`; `NO_COMMAND`: none.
    pub last_command: u16,
    pub version: Version,
    /// SELECT: the number, and what the reactor has in its place (`databases`).
    pub database: u32,
    pub seat: u8,
    pub reply: ReplyMode,
    pub authenticated: bool,
    /// MONITOR was sent: it watches all clients.
    pub monitors: bool,
    /// READONLY was sent: reads may go to replicas.
    pub readonly: bool,
    pub no_evict: bool,
    pub no_touch: bool,
    /// CLIENT MAINT_NOTIFICATIONS ON: it wants to be told before it is closed.
    pub hears_moving: bool,
}

// An idle client must cost well under 1 KiB in all (DESIGN 5).
const _: () = assert!(size_of::<Session>() < 200);

impl Session {
    /// A client that has just connected. `authenticated`: no login is asked for.
    pub fn new(
        id: u64,
        peer: SocketAddr,
        local: SocketAddr,
        now_ms: u64,
        authenticated: bool,
    ) -> Session {
        Session {
            id,
            connected_ms: now_ms,
            active_ms: now_ms,
            peer,
            local,
            user: None,
            details: None,
            subscriptions: 0,
            drawn: 0,
            last_command: NO_COMMAND,
            version: Version::Resp2,
            database: 0,
            seat: 0,
            reply: ReplyMode::On,
            authenticated,
            monitors: false,
            readonly: false,
            no_evict: false,
            no_touch: false,
            hears_moving: false,
        }
    }

    /// Notes a request before it is carried out. `command`: `Command::id`.
    pub fn command_started(&mut self, command: u16, now_ms: u64) {
        self.last_command = command;
        self.active_ms = now_ms;
    }

    /// Whether the reply of the running command is sent at all. For commands answered here, ask
    /// after `local::answer`: CLIENT REPLY ON answers OK by its own new mode.
    pub fn wants_reply(&self) -> bool {
        matches!(self.reply, ReplyMode::On | ReplyMode::SkipNext)
    }

    /// Moves CLIENT REPLY SKIP on, once for each command, after `wants_reply` was asked.
    pub fn command_done(&mut self) {
        self.reply = match self.reply {
            ReplyMode::SkipNext => ReplyMode::Skipping,
            ReplyMode::Skipping => ReplyMode::On,
            other => other,
        };
    }

    /// RESET: all but the addresses, the identity of the library and the counters goes back to the
    /// start; subscriptions are dropped by whoever holds them. `authenticated`: no login is asked
    /// for.
    pub fn reset(&mut self, authenticated: bool) {
        self.set_name(None);
        self.user = None;
        self.version = Version::Resp2;
        self.database = 0;
        self.seat = 0;
        // What SKIP silences is RESET's own answer (redis-server: `clearClientConnectionState`).
        if self.reply != ReplyMode::Skipping {
            self.reply = ReplyMode::On;
        }
        self.authenticated = authenticated;
        self.monitors = false;
        self.readonly = false;
        self.no_evict = false;
        self.no_touch = false;
        self.hears_moving = false;
    }

    /// The user's name, as ACL WHOAMI says it.
    pub fn user_name(&self) -> &str {
        self.user.as_deref().unwrap_or("default")
    }

    pub fn name(&self) -> Option<&str> {
        self.details.as_ref()?.name.as_deref()
    }

    pub fn lib_name(&self) -> Option<&str> {
        self.details.as_ref()?.lib_name.as_deref()
    }

    pub fn lib_ver(&self) -> Option<&str> {
        self.details.as_ref()?.lib_ver.as_deref()
    }

    /// The caller has validated the text (`local::client`).
    pub fn set_name(&mut self, name: Option<&str>) {
        self.set_detail(name, |details| &mut details.name);
    }

    /// The caller has validated the text.
    pub fn set_lib_name(&mut self, name: Option<&str>) {
        self.set_detail(name, |details| &mut details.lib_name);
    }

    /// The caller has validated the text.
    pub fn set_lib_ver(&mut self, version: Option<&str>) {
        self.set_detail(version, |details| &mut details.lib_ver);
    }

    fn set_detail(
        &mut self,
        text: Option<&str>,
        place: impl FnOnce(&mut Details) -> &mut Option<Box<str>>,
    ) {
        if text.is_none() && self.details.is_none() {
            return;
        }
        let details = self.details.get_or_insert_default();
        *place(details) = text.map(Box::from);
        if **details == Details::default() {
            self.details = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let address = SocketAddr::from(([127, 0, 0, 1], 6379));
        Session::new(7, address, address, 0, true)
    }

    #[test]
    fn skip_leaves_out_exactly_the_next_reply() {
        let mut client = session();
        client.reply = ReplyMode::SkipNext;
        client.command_done();
        assert!(!client.wants_reply());
        client.command_done();
        assert!(client.wants_reply());
        assert_eq!(client.reply, ReplyMode::On);
    }

    #[test]
    fn reset_ends_off_and_is_itself_silenced_by_skip() {
        for (before, wanted) in [(ReplyMode::Off, true), (ReplyMode::Skipping, false)] {
            let mut client = session();
            client.reply = before;
            client.reset(true);
            assert_eq!(client.wants_reply(), wanted, "{before:?}");
            client.command_done();
            assert_eq!(client.reply, ReplyMode::On);
        }
    }

    #[test]
    fn off_stays_off() {
        let mut client = session();
        client.reply = ReplyMode::Off;
        client.command_done();
        assert!(!client.wants_reply());
        assert_eq!(client.reply, ReplyMode::Off);
    }

    #[test]
    fn an_emptied_description_costs_nothing() {
        let mut client = session();
        client.set_name(None);
        assert!(client.details.is_none());
        client.set_name(Some("worker"));
        client.set_lib_name(Some("lib"));
        assert_eq!((client.name(), client.lib_name()), (Some("worker"), Some("lib")));
        client.set_lib_name(None);
        client.set_name(None);
        assert!(client.details.is_none());
    }

    #[test]
    fn reset_forgets_the_login_and_keeps_the_library() {
        let mut client = session();
        client.user = Some("bob".into());
        client.version = Version::Resp3;
        client.set_name(Some("n"));
        client.set_lib_ver(Some("1.0"));
        client.readonly = true;
        client.reset(false);
        assert!(!client.authenticated && !client.readonly);
        assert_eq!(client.user_name(), "default");
        assert_eq!(client.version, Version::Resp2);
        assert_eq!((client.name(), client.lib_ver()), (None, Some("1.0")));
    }
}
