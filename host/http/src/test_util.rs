//! Files for servers under test.

/// Characters of a line of PEM.
const LINE: usize = 64;

/// Bytes with a label such as `CERTIFICATE`, as RFC 7468 describes PEM.
#[must_use]
pub fn pem(label: &str, der: &[u8]) -> String {
    let digits = base64::encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for at in (0..digits.len()).step_by(LINE) {
        text.push_str(&digits[at..digits.len().min(at + LINE)]);
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}
