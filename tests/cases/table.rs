//! The table of the catalogue's entries is complete, and says of each test what is true.

/// Every entry, by number and name.
const ENTRIES: [(u32, &str); 44] = [
    (1, "lr-schedule-frozen"),
    (3, "state-rebound-out-of-place"),
    (5, "host-reads-frozen"),
    (6, "host-read-branch"),
    (8, "log-and-collect-inside-step"),
    (9, "dropout-mask-repeats"),
    (11, "reseed-and-shared-generator"),
    (12, "input-in-container-not-rebound"),
    (14, "short-last-batch"),
    (15, "kept-output-overwritten"),
    (17, "parameter-replaced-between-calls"),
    (18, "canary-aliases-graph-pool"),
    (20, "extra-warmup-runs-mutate-state"),
    (22, "mirror-read-while-writing"),
    (24, "copy-then-mutate-source"),
    (25, "output-shares-storage-it-should-own"),
    (27, "alias-pattern-changes-after-trace"),
    (28, "saved-tensor-mutated-before-backward"),
    (29, "planner-clobbers-live-buffer"),
    (30, "state-write-without-reader"),
    (32, "nan-through-max-min-clamp"),
    (33, "zero-times-nan-and-signed-zero"),
    (35, "fma-contraction-cancellation"),
    (36, "half-rounding-observed-by-compare"),
    (38, "variance-cancellation"),
    (39, "masked-softmax-row"),
    (41, "kink-subgradients"),
    (43, "where-unselected-branch"),
    (44, "integer-division-shift-cast-edges"),
    (45, "promotion-and-zero-dim"),
    (48, "duplicate-index-scatter-add"),
    (49, "broadcast-gradient-reduction"),
    (50, "strides-into-fused-kernel"),
    (51, "empty-tensors"),
    (52, "long-sum-accuracy-and-thread-count"),
    (53, "more-than-2^31-elements"),
    (54, "very-deep-chain"),
    (55, "kernel-parameter-limit"),
    (57, "panic-leaves-tracer-armed"),
    (59, "second-thread-during-trace"),
    (61, "out-of-memory-during-trace"),
    (62, "replay-from-another-thread-or-stream"),
    (63, "gradient-accumulation-and-zeroing"),
    (64, "clip-global-norm-edges"),
];

/// Scenarios of this target, by file.
const FILES: [&[(&str, crate::harness::Scenario)]; 8] = [
    crate::a_host_values::ALL,
    crate::b_random::ALL,
    crate::c_buffers::ALL,
    crate::d_aliasing::ALL,
    crate::e_numerics::ALL,
    crate::f_scale::ALL,
    crate::g_concurrency::ALL,
    crate::h_training_loops::ALL,
];

/// The test of an entry: its name with every other character as `_`.
fn test_of(entry: &str) -> String {
    entry.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// Every entry has one row, whose state is `tested`, `tested: how`, `partly: …` or `not yet: …`; those tested, wholly or
/// partly, have a test, and no test is without a row.
#[test]
fn every_entry_has_its_row_and_its_test() {
    let table = include_str!("README.md");
    let mut tests: Vec<String> = FILES.iter().flat_map(|f| f.iter().map(|t| t.0.to_string())).collect();
    for (number, entry) in ENTRIES {
        let start = format!("| {number:02} | `{entry}` | ");
        let rows: Vec<&str> = table.lines().filter(|l| l.starts_with(&start)).collect();
        assert_eq!(rows.len(), 1, "entry {number} `{entry}` has {} rows", rows.len());
        let state = rows[0][start.len()..].trim_end_matches('|').trim();
        let there = tests.iter().position(|t| *t == test_of(entry));
        match there {
            Some(i) => {
                tests.swap_remove(i);
                let known = state == "tested" || ["tested: ", "partly: "].iter().any(|s| state.starts_with(s));
                assert!(known, "`{entry}` has a test, but is `{state}`");
            }
            None => assert!(state.starts_with("not yet: "), "`{entry}` has no test, but is `{state}`"),
        }
    }
    assert!(tests.is_empty(), "tests without an entry: {tests:?}");
    let rows = table.lines().filter(|l| l.starts_with("| ") && l.contains('`')).count();
    assert_eq!(rows, ENTRIES.len(), "rows without an entry");
}
