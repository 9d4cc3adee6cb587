//! HTTP/1.1 as far as it is needed: a request's head in, a response's bytes out. GET and HEAD, one
//! request for each connection.
//!
//! Not here: sockets (`serve`), what is answered.

/// Bytes of a request's head, at most.
pub const HEAD_MAX: usize = 8 * 1024;

/// A request that is understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub path: String,
    /// Behind the question mark.
    pub query: String,
    /// HEAD: the answer has no body.
    pub head_only: bool,
    /// The `Host` header, without a port.
    pub host: String,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Status {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    NotAllowed,
    TooLarge,
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::NotAllowed => "405 Method Not Allowed",
            Status::TooLarge => "431 Request Header Fields Too Large",
            Status::Unavailable => "503 Service Unavailable",
        }
    }
}

/// `None`: the head has not ended yet.
pub fn parse(bytes: &[u8]) -> Option<Result<Request, Status>> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    match end {
        Some(end) if end <= HEAD_MAX => Some(parse_head(&bytes[..end])),
        None if bytes.len() < HEAD_MAX => None,
        _ => Some(Err(Status::TooLarge)),
    }
}

fn parse_head(head: &[u8]) -> Result<Request, Status> {
    let head = std::str::from_utf8(head).map_err(|_| Status::BadRequest)?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next());
    let (Some(method), Some(target), Some(version)) = (method, target, words.next()) else {
        return Err(Status::BadRequest);
    };
    if !version.starts_with("HTTP/1.") || words.next().is_some() || !target.starts_with('/') {
        return Err(Status::BadRequest);
    }
    if !matches!(method, "GET" | "HEAD") {
        return Err(Status::NotAllowed);
    }
    let host = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("host"))
        .map_or("", |(_, value)| value.trim());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Request {
        path: path.to_string(),
        query: query.to_string(),
        head_only: method == "HEAD",
        host: without_port(host).to_string(),
    })
}

/// `[::1]:80` is `::1`, `a:80` is `a`.
fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

impl Request {
    /// Whether it names this host by an address, or as the one it comes from. Another name means
    /// that a browser was led here by somebody else's page.
    pub fn names_no_stranger(&self) -> bool {
        let is_address = self.host.parse::<std::net::IpAddr>().is_ok();
        self.host.is_empty() || is_address || self.host.eq_ignore_ascii_case("localhost")
    }

    /// A word in the query, as it stands there.
    pub fn word(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        Some(pairs.find(|(key, _)| *key == name)?.1)
    }

    /// A number in the query.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.word(name)?.parse().ok()
    }
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    pub status: Status,
    pub kind: &'static str,
    pub body: String,
}

impl Response {
    pub fn plain(status: Status, body: impl Into<String>) -> Response {
        Response { status, kind: "text/plain; charset=utf-8", body: body.into() }
    }

    /// The page runs its own script and speaks with nobody but us.
    pub fn bytes(&self, head_only: bool) -> Vec<u8> {
        let allow = if self.status == Status::NotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
        let mut out = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n",
            self.status.line(),
            self.kind,
            self.body.len(),
        );
        if !head_only {
            out.push_str(&self.body);
        }
        out.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Result<Request, Status>> {
        parse(text.as_bytes())
    }

    #[test]
    fn request_is_read_when_its_head_is_whole() {
        assert_eq!(read("GET /metrics HTTP/1.1\r\nHost: a"), None);
        let request = read("GET /top?width=80&rows=24 HTTP/1.1\r\nhOst: [::1]:9421\r\n\r\nrest");
        let request = request.unwrap().unwrap();
        assert_eq!((request.path.as_str(), request.host.as_str()), ("/top", "::1"));
        assert_eq!((request.number("rows"), request.number("row")), (Some(24), None));
        assert_eq!((request.word("width"), request.word("wid")), (Some("80"), None));
        assert!(!request.head_only);
        let head = read("HEAD / HTTP/1.0\r\n\r\n").unwrap().unwrap();
        assert!(head.head_only && head.host.is_empty());
    }

    #[test]
    fn what_is_no_request_of_ours_is_refused() {
        for (text, status) in [
            ("POST / HTTP/1.1\r\n\r\n", Status::NotAllowed),
            ("GET http://a/ HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET / HTTP/2.0\r\n\r\n", Status::BadRequest),
            ("GET /\r\n\r\n", Status::BadRequest),
            ("\r\n\r\n", Status::BadRequest),
            ("GET / HTTP/1.1 x\r\n\r\n", Status::BadRequest),
        ] {
            assert_eq!(read(text), Some(Err(status)), "{text:?}");
        }
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\n\r\n"), Some(Err(Status::BadRequest)));
        assert_eq!(parse(&[b'a'; HEAD_MAX]), Some(Err(Status::TooLarge)));
        assert_eq!(parse(&[b'a'; HEAD_MAX - 1]), None);
    }

    #[test]
    fn host_of_a_stranger_is_told_from_an_address() {
        for (host, fine) in [
            ("127.0.0.1:9421", true),
            ("localhost", true),
            ("[::1]:9421", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:9421", false),
        ] {
            let request = read(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(request.unwrap().unwrap().names_no_stranger(), fine, "{host}");
        }
    }

    #[test]
    fn answer_to_head_has_its_length_and_no_body() {
        let response = Response::plain(Status::Ok, "ok\n");
        let text = String::from_utf8(response.bytes(true)).unwrap();
        assert!(text.contains("Content-Length: 3\r\n") && text.ends_with("\r\n\r\n"));
        assert!(String::from_utf8(response.bytes(false)).unwrap().ends_with("\r\n\r\nok\n"));
    }
}
