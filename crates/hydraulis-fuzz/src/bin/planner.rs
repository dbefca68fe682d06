//! libFuzzer over profiles, clusters, strategies and batches.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hydraulis_fuzz::planner::probe(bytes));
