#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = pointsman_tests::fuzz::gguf(bytes);
});
