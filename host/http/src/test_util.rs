//! Files for servers under test.

/// Bytes with a label such as `CERTIFICATE`, as RFC 7468 describes PEM.
#[must_use]
pub fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = group
                .iter()
                .fold(0, |bits, byte| bits << 8 | u32::from(*byte));
            let bits = bits << (8 * (3 - group.len()));
            for digit in 0..4 {
                let index = bits >> (18 - 6 * digit) & 63;
                let is_padding = digit > group.len();
                let digit = if is_padding {
                    b'='
                } else {
                    DIGITS[index as usize]
                };
                text.push(char::from(digit));
            }
        }
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}
