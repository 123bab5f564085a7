//! Files with which a compiler gets lost: a good policy, and something after it.

use crate::host::policy;

/// Id of a section with a core module.
const CORE_MODULE: u8 = 1;
/// Id of a section of types of components.
const TYPES: u8 = 7;

/// A policy with `levels` of types within types, three bytes each.
pub(crate) fn nested_types(levels: usize) -> Vec<u8> {
    // One type: that of a component with one declaration, which is a type.
    let mut types = vec![1];
    types.extend([0x41, 1, 1].repeat(levels - 1));
    types.extend([0x42, 0]);
    with_section(TYPES, &types)
}

/// A policy with a module of `functions` functions of `locals` locals each.
pub(crate) fn many_locals(functions: u32, locals: u32) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    // One type, without parameters and results.
    section(&mut module, 1, &[1, 0x60, 0, 0]);
    let mut types = leb(functions);
    types.extend(vec![0; functions as usize]);
    section(&mut module, 3, &types);
    // One group of 64-bit integers, and the end.
    let body = [&[1][..], &leb(locals), &[0x7e, 0x0b]].concat();
    let body = [leb(u32::try_from(body.len()).unwrap()), body].concat();
    let code = [leb(functions), body.repeat(functions as usize)].concat();
    section(&mut module, 10, &code);
    with_section(CORE_MODULE, &module)
}

fn with_section(id: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = policy("aging");
    section(&mut bytes, id, content);
    bytes
}

fn section(bytes: &mut Vec<u8>, id: u8, content: &[u8]) {
    bytes.push(id);
    bytes.extend(leb(u32::try_from(content.len()).unwrap()));
    bytes.extend(content);
}

/// `number` as WebAssembly writes it.
fn leb(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}
