//! libFuzzer over the text of profiles and plans.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hydraulis_fuzz::documents::probe(bytes));
