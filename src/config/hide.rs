//! Passwords among the words that the process was started with, made unreadable: the system shows
//! them to others (`/proc/PID/cmdline` to everybody, `environ` to the same user).
//!
//! Not here: where those words are (`ring`), when (`main`: as soon as they have been copied).

use super::options::rows;

/// Arguments, or variables, each ended by NUL: a password's letters become stars.
pub fn hide_passwords(words: &mut [u8]) {
    let rows = rows();
    let mut is_next = false;
    for word in words.split_mut(|&byte| byte == 0) {
        if std::mem::take(&mut is_next) {
            word.fill(b'*');
            continue;
        }
        for row in rows.iter().filter(|row| row.secret) {
            let (flag, variable) = (row.flag(), row.variable());
            is_next |= word == flag.as_bytes();
            for name in [flag, variable] {
                let value =
                    word.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
                if let Some(length) = value.map(<[u8]>::len) {
                    let start = word.len() - length;
                    word[start..].fill(b'*');
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::hide_passwords;

    #[track_caller]
    fn check(words: &str, expected: &str) {
        let mut words = words.replace(' ', "\0").into_bytes();
        hide_passwords(&mut words);
        assert_eq!(String::from_utf8(words).unwrap().replace('\0', " "), expected);
    }

    #[test]
    fn passwords_become_stars_and_nothing_else_does() {
        check("ringway --password secret --node a:1 ", "ringway --password ****** --node a:1 ");
        check("ringway --node-password=x=y", "ringway --node-password=***");
        check("--password --password --password", "--password ********** --password");
        check("--password-file secret", "--password-file secret");
        check("RINGWAY_PASSWORD=abc HOME=/root", "RINGWAY_PASSWORD=*** HOME=/root");
        check(
            "RINGWAY_NODE_PASSWORD=a RINGWAY_PASSWORD_FILE=f",
            "RINGWAY_NODE_PASSWORD=* RINGWAY_PASSWORD_FILE=f",
        );
        check("RINGWAY_PASSWORD= x", "RINGWAY_PASSWORD= x");
        check("--password=", "--password=");
        check("--password", "--password");
        check("", "");
    }
}
