//! Files with which a compiler gets lost, for the tests of hosts: a good policy, and something after it.

/// Id of a section with a core module.
const CORE_MODULE: u8 = 1;
/// Id of a section of types of components.
const TYPES: u8 = 7;

/// `policy` with `levels` of types within types, three bytes each. At least one level.
#[must_use]
pub fn nested_types(policy: &[u8], levels: usize) -> Vec<u8> {
    // One type: that of a component with one declaration, which is a type.
    let mut types = vec![1];
    types.extend([0x41, 1, 1].repeat(levels.saturating_sub(1)));
    types.extend([0x42, 0]);
    with_section(policy, TYPES, &types)
}

/// `policy` with a module of `functions` functions of `locals` locals each.
#[must_use]
pub fn many_locals(policy: &[u8], functions: u32, locals: u32) -> Vec<u8> {
    let times = usize::try_from(functions).unwrap_or(usize::MAX);
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    // One type, without parameters and results.
    section(&mut module, 1, &[1, 0x60, 0, 0]);
    let mut types = leb(functions);
    types.extend([0].repeat(times));
    section(&mut module, 3, &types);
    // One group of 64-bit integers, and the end.
    let body = [&[1][..], &leb(locals), &[0x7e, 0x0b]].concat();
    let body = [leb(length(&body)), body].concat();
    let code = [leb(functions), body.repeat(times)].concat();
    section(&mut module, 10, &code);
    with_section(policy, CORE_MODULE, &module)
}

fn with_section(policy: &[u8], id: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = policy.to_vec();
    section(&mut bytes, id, content);
    bytes
}

fn section(bytes: &mut Vec<u8>, id: u8, content: &[u8]) {
    bytes.push(id);
    bytes.extend(leb(length(content)));
    bytes.extend(content);
}

fn length(content: &[u8]) -> u32 {
    u32::try_from(content.len()).expect("the tests' files are small")
}

/// `number` as WebAssembly writes it.
fn leb(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        let [low, ..] = number.to_le_bytes();
        bytes.push(low | 0x80);
        number >>= 7;
    }
    let [last, ..] = number.to_le_bytes();
    bytes.push(last);
    bytes
}
