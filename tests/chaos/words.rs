//! Requests and values written fast, replies read fast: the checker shares two CPUs with what it
//! checks.
//!
//! Not here: what they mean (`writer`). Deep replies are read by `support::reply`.

/// One reply in a buffer.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Frame<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    Nil,
    /// This many frames follow.
    Array(usize),
}

/// The frame at `*at`, which moves behind it. `Ok(None)`: not all of it is here.
pub fn frame<'a>(bytes: &'a [u8], at: &mut usize) -> Result<Option<Frame<'a>>, String> {
    let rest = &bytes[*at..];
    let Some(end) = rest.iter().position(|&byte| byte == b'\r') else { return Ok(None) };
    if rest.len() < end + 2 {
        return Ok(None);
    }
    let line = &rest[1..end];
    let mut length = end + 2;
    let found = match rest[0] {
        b'+' | b',' | b'#' | b'(' => Frame::Simple(line),
        b'-' => Frame::Error(line),
        b':' => Frame::Integer(number(line)?),
        b'_' => Frame::Nil,
        b'$' => match number(line)? {
            -1 => Frame::Nil,
            count => {
                let stop = length + count as usize;
                if rest.len() < stop + 2 {
                    return Ok(None);
                }
                let body = &rest[length..stop];
                length = stop + 2;
                Frame::Bulk(body)
            }
        },
        b'*' | b'~' | b'>' => match number(line)? {
            -1 => Frame::Nil,
            count => Frame::Array(count as usize),
        },
        b'%' => Frame::Array(number(line)? as usize * 2),
        other => return Err(format!("type byte {other} in {:?}", text(&rest[..end]))),
    };
    *at += length;
    Ok(Some(found))
}

/// Whether a whole reply with all its parts stands at `at`; where it ends.
pub fn whole(bytes: &[u8], mut at: usize) -> Result<Option<usize>, String> {
    let mut left = 1;
    while left > 0 {
        left -= 1;
        match frame(bytes, &mut at)? {
            None => return Ok(None),
            Some(Frame::Array(count)) => left += count,
            Some(_) => (),
        }
    }
    Ok(Some(at))
}

fn number(line: &[u8]) -> Result<i64, String> {
    let (digits, sign) = match line.first() {
        Some(b'-') => (&line[1..], -1),
        _ => (line, 1),
    };
    let mut value = 0_i64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return Err(format!("the number {:?}", text(line)));
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Ok(value * sign)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned()
}

/// Appends one request.
pub fn request(out: &mut Vec<u8>, words: &[&[u8]]) {
    head(out, b'*', words.len());
    for word in words {
        head(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn head(out: &mut Vec<u8>, kind: u8, mut value: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// `width` digits.
pub fn padded(out: &mut Vec<u8>, width: usize, value: u32) {
    let from = out.len();
    out.resize(from + width, b'0');
    digits(&mut out[from..], value);
}

/// The last digits of a number; zeros stand there already.
pub fn digits(out: &mut [u8], mut value: u32) {
    for place in out.iter_mut().rev() {
        if value == 0 {
            break;
        }
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

pub fn parse(digits: &[u8]) -> Option<u32> {
    let add = |sum: u32, &digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    digits.iter().try_fold(0, add)
}
