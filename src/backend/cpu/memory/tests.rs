use super::*;

const SIZES: [usize; 16] =
    [1, 4, 63, 64, 65, 200, 256, 257, 320, 321, 1000, 4096, 65_537, LARGE - 1, LARGE, 5 * LARGE + 3];

fn fill(block: &Block, value: u8) {
    // SAFETY: the block is ours and has that many bytes.
    unsafe { block.ptr().write_bytes(value, block.len()) };
}

fn all(block: &Block, value: u8) -> bool {
    // SAFETY: `fill` has initialised these bytes.
    unsafe { std::slice::from_raw_parts(block.ptr(), block.len()) }.iter().all(|&x| x == value)
}

#[test]
fn classes_fit_tightly() {
    for class in 0..CLASSES {
        let size = size_of_class(class);
        assert_eq!(class_of(size), Some(class));
        assert_eq!(class_of(size + 1), (class + 1 < CLASSES).then_some(class + 1));
        assert!(size.is_multiple_of(64));
    }
    for bytes in (257..100_000).chain([LARGE + 1, 3 * LARGE + 1]) {
        let size = size_of_class(class_of(bytes).unwrap());
        assert!(size >= bytes && (size - bytes) * 4 <= size, "{bytes} in {size}");
    }
}

#[test]
fn blocks_are_aligned_and_apart() {
    let pool = HostPool::new(None);
    let blocks: Vec<Block> = SIZES.iter().chain(&SIZES).map(|&bytes| pool.alloc(bytes).unwrap()).collect();
    for (i, block) in blocks.iter().enumerate() {
        assert!(block.ptr().addr().is_multiple_of(ALIGN));
        assert!(block.len() < LARGE || block.ptr().addr().is_multiple_of(LARGE));
        assert!(block.capacity() >= block.len());
        fill(block, i as u8);
    }
    assert!(blocks.iter().enumerate().all(|(i, block)| all(block, i as u8)));
    assert_eq!(pool.stats().live_blocks, blocks.len());
    drop(blocks);
    assert_eq!((pool.stats().live_blocks, pool.stats().live_bytes), (0, 0));
}

#[test]
fn freed_blocks_are_used_again() {
    let pool = HostPool::new(None);
    for bytes in SIZES {
        let first = pool.alloc(bytes).unwrap().ptr();
        assert_eq!(pool.alloc(bytes).unwrap().ptr(), first, "{bytes}");
    }
    let stats = pool.stats();
    assert!(stats.hits >= SIZES.len() as u64);
    assert_eq!(stats.misses + stats.hits, 2 * SIZES.len() as u64);
    assert!(stats.cached_bytes > 0);
    pool.trim();
    assert_eq!(pool.stats().cached_bytes, 0);
}

#[test]
fn an_empty_block() {
    let pool = HostPool::new(Some(0));
    let block = pool.alloc(0).unwrap();
    assert!(block.is_empty() && block.ptr().addr().is_multiple_of(ALIGN) && block.capacity() == 0);
    assert_eq!(pool.stats(), PoolStats::default());
}

#[test]
fn blocks_outlive_the_callers_pool_and_cross_threads() {
    let pool = HostPool::new(None);
    let blocks: Vec<Block> = SIZES.iter().map(|&bytes| pool.alloc(bytes).unwrap()).collect();
    let core = Arc::downgrade(&pool.core().alive);
    drop(pool);
    assert!(core.upgrade().is_some());
    std::thread::spawn(move || drop(blocks)).join().unwrap();
    assert!(core.upgrade().is_none());
}

#[test]
fn many_threads() {
    let pool = HostPool::new(None);
    let (give, take) = std::sync::mpsc::sync_channel::<(Block, u8)>(16);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (pool, give) = (&pool, give.clone());
            scope.spawn(move || {
                for i in 0..3000usize {
                    let block = pool.alloc(1 + (i * 97) % 3000).unwrap();
                    fill(&block, thread);
                    give.send((block, thread)).unwrap();
                }
            });
        }
        drop(give);
        scope.spawn(move || take.into_iter().for_each(|(block, value)| assert!(all(&block, value))));
    });
    let stats = pool.stats();
    assert_eq!((stats.live_bytes, stats.live_blocks, stats.hits + stats.misses), (0, 0, 9000));
}

#[test]
fn the_limit_holds() {
    let pool = HostPool::new(Some(10_000));
    let held = pool.alloc(4096).unwrap();
    assert_eq!(pool.alloc(8192).unwrap_err(), OutOfMemory { need: 8192, live: 4096, limit: Some(10_000) });
    drop(pool.alloc(5000).unwrap());
    // 5120 bytes are cached now; they make room for another class.
    assert_eq!(pool.stats().cached_bytes, 5120);
    let other = pool.alloc(2048).unwrap();
    assert_eq!(pool.stats().cached_bytes, 0);
    drop((held, other));
    pool.set_limit(Some(100));
    assert_eq!(pool.stats().cached_bytes, 0);
    assert!(pool.alloc(200).is_err());
    pool.set_limit(None);
    assert!(pool.alloc(200).is_ok());
    assert_eq!(pool.stats().high_water, 9216);
}

#[test]
fn what_no_system_has_is_an_error() {
    let pool = HostPool::new(None);
    for bytes in [usize::MAX, 1 << 62, (1 << MAX_LOG) + 1, 1 << MAX_LOG] {
        assert_eq!(pool.alloc(bytes).unwrap_err(), OutOfMemory { need: bytes, live: 0, limit: None });
    }
    assert_eq!(pool.stats(), PoolStats::default());
}

#[test]
fn the_cache_is_bounded() {
    let pool = HostPool::new(None);
    // Distinct classes, so that nothing is used again.
    let sizes = [8, 9, 11, 13, 16, 18, 22, 26, 30].map(|mib| mib << 20);
    sizes.iter().for_each(|&bytes| drop(pool.alloc(bytes).unwrap()));
    assert!(pool.stats().cached_bytes <= CACHE_FLOOR);
    // The class used last survived.
    let before = pool.stats().hits;
    drop(pool.alloc(30 << 20).unwrap());
    assert_eq!(pool.stats().hits, before + 1);
}

#[test]
fn poison_shows() {
    let pool = HostPool::new(None);
    pool.set_poison(true);
    for bytes in [4, 1000, LARGE] {
        for _ in 0..2 {
            let block = pool.alloc(bytes).unwrap();
            // SAFETY: poisoned blocks are initialised in whole words.
            let words = unsafe { std::slice::from_raw_parts(block.ptr().cast::<u32>(), bytes / 4) };
            assert!(words.iter().all(|&word| word == POISON) && f32::from_bits(words[0]).is_nan());
            fill(&block, 0);
        }
    }
}
