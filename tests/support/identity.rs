//! What a proxy without a process says that it is. Not here: what tests change of it.

use ringway::proxy::local::Identity;

pub fn identity() -> Identity {
    Identity {
        version_announced: "7.2.5".into(),
        run_id: [b'a'; 40],
        users: Vec::new(),
        ignore_select: false,
        admin_user: None,
        slowlog_log_slower_than: 10_000,
        slowlog_max_len: 128,
        maxclients: 10_000,
        listen_port: 6379,
        announce: Vec::new(),
        started_unix_s: 1_700_000_000,
        process_id: 1,
        reactors: 1,
        idle_timeout_s: 0,
        os: "none".into(),
        executable: "test".into(),
        config_file: "".into(),
        options: Vec::new(),
        secret: [7; 32],
    }
}
