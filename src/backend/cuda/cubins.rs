//! Compiled images on disk, so that a program's second start compiles nothing.
//!
//! One file an image, named by a hash of all that it depends on, which the file repeats in full: a hash that collides, a file
//! that is cut short or changed is seen and compiled anew. Files appear whole (written aside, then renamed), so
//! processes may share the folder. Its size is bounded: the files used longest ago go first. What the disk refuses is
//! logged and costs nothing but time.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use crate::base::config::config;

/// Most bytes of all files together.
const MOST_BYTES: u64 = 256 << 20;
/// Files written between two looks at the folder's size.
const LOOK_EVERY: u64 = 64;
const MAGIC: &[u8; 8] = b"sgcubin1";

/// Where compiled kernels are kept between runs of a program.
///
/// ```
/// # use stepgraph::*;
/// let options = CudaOptions { kernel_cache: KernelCache::Off, ..CudaOptions::default() };
/// assert_ne!(options.kernel_cache, KernelCache::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KernelCache {
    /// Where `STEPGRAPH_CACHE` says; by default `stepgraph/cubin` in the user's cache folder.
    #[default]
    Configured,
    /// Nowhere.
    Off,
    /// In this folder.
    At(PathBuf),
}

/// A folder of images; without one, nothing is kept.
pub struct Cubins {
    folder: Option<PathBuf>,
    written: AtomicU64,
    most_bytes: u64,
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo), from two starting points for a name of 128 bits.
fn fnv(start: u64, parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|p| p.iter());
    bytes.fold(start, |h, &b| (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3))
}

const FNV: u64 = 0xcbf2_9ce4_8422_2325;

impl Cubins {
    /// The folder that the configuration names, or another.
    pub fn new(cache: &KernelCache) -> Cubins {
        Cubins::at(match cache {
            KernelCache::Configured => config().cache.as_ref().map(|c| c.join("cubin")),
            KernelCache::Off => None,
            KernelCache::At(folder) => Some(folder.clone()),
        })
    }

    fn at(folder: Option<PathBuf>) -> Cubins {
        Cubins { folder, written: AtomicU64::new(0), most_bytes: MOST_BYTES }
    }

    fn path(&self, key: &str, source: &str) -> Option<PathBuf> {
        let parts = [key.as_bytes(), b"\0", source.as_bytes()];
        let name = format!("{:016x}{:016x}.cubin", fnv(FNV, &parts), fnv(FNV ^ 0x9e37_79b9_7f4a_7c15, &parts));
        Some(self.folder.as_ref()?.join(name))
    }

    /// The image that was kept for this source; `None` if there is none, or it is damaged.
    pub fn get(&self, key: &str, source: &str) -> Option<Vec<u8>> {
        let path = self.path(key, source)?;
        let file = fs::read(&path).ok()?;
        let image = parse(&file, key, source);
        match image {
            // Its time of use decides how long it stays.
            Some(_) => {
                drop(fs::File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now())))
            }
            None => {
                tracing::warn!(file = %path.display(), "a cached kernel is damaged or of another source: compiling it anew");
                let _ = fs::remove_file(&path);
            }
        }
        image.map(<[u8]>::to_vec)
    }

    /// Keeps an image.
    pub fn put(&self, key: &str, source: &str, image: &[u8]) {
        let Some(path) = self.path(key, source) else { return };
        if let Err(e) = self.write(&path, key, source, image) {
            tracing::debug!(file = %path.display(), error = %e, "a compiled kernel is not kept on disk");
        }
        if self.written.fetch_add(1, Relaxed) % LOOK_EVERY == LOOK_EVERY - 1 {
            self.shrink();
        }
    }

    fn write(&self, path: &Path, key: &str, source: &str, image: &[u8]) -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let count = self.written.load(Relaxed);
        let aside = folder.join(format!("{}.{count}.{:?}.part", std::process::id(), std::thread::current().id()));
        let mut file = fs::File::create(&aside)?;
        let check = fnv(FNV, &[key.as_bytes(), source.as_bytes(), image]);
        file.write_all(MAGIC)?;
        for part in [key.as_bytes(), source.as_bytes(), image] {
            file.write_all(&(part.len() as u64).to_le_bytes())?;
            file.write_all(part)?;
        }
        file.write_all(&check.to_le_bytes())?;
        drop(file);
        fs::rename(&aside, path).inspect_err(|_| drop(fs::remove_file(&aside)))
    }

    /// Forgets an image that the driver refused.
    pub fn remove(&self, key: &str, source: &str) {
        if let Some(path) = self.path(key, source) {
            let _ = fs::remove_file(path);
        }
    }

    /// Removes the files used longest ago while all together are too large.
    fn shrink(&self) {
        let Some(folder) = &self.folder else { return };
        let entry = |e: fs::DirEntry| {
            let meta = e.metadata().ok()?;
            Some((meta.modified().ok()?, meta.len(), e.path()))
        };
        let mut files: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(entry).collect();
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        files.sort();
        for (_, len, path) in files {
            if total <= self.most_bytes {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= len;
            }
        }
    }
}

/// The image in a file, if the file is whole and made from this source.
fn parse<'a>(file: &'a [u8], key: &str, source: &str) -> Option<&'a [u8]> {
    let mut rest = file.strip_prefix(MAGIC)?;
    let mut part = || {
        let (len, after) = rest.split_first_chunk::<8>()?;
        let (part, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        rest = after;
        Some(part)
    };
    let (k, s, image) = (part()?, part()?, part()?);
    let whole = rest == fnv(FNV, &[k, s, image]).to_le_bytes();
    (whole && k == key.as_bytes() && s == source.as_bytes()).then_some(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("stepgraph-cubins-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_was_kept_is_found_and_damage_is_seen() {
        let at = folder("damage");
        let cubins = Cubins::at(Some(at.clone()));
        assert_eq!(cubins.get("k", "source"), None);
        cubins.put("k", "source", b"image");
        assert_eq!(cubins.get("k", "source").as_deref(), Some(&b"image"[..]));
        assert_eq!(cubins.get("other compiler", "source"), None);
        let path = cubins.path("k", "source").unwrap();
        let good = fs::read(&path).unwrap();
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert_eq!(cubins.get("k", "source"), None, "byte {i} was changed");
            assert!(!path.exists());
            fs::write(&path, &good[..i]).unwrap();
            assert_eq!(cubins.get("k", "source"), None, "cut at {i}");
        }
        // A file of another source under this name, as a colliding hash would give.
        cubins.put("k", "another", b"wrong");
        fs::rename(cubins.path("k", "another").unwrap(), &path).unwrap();
        assert_eq!(cubins.get("k", "source"), None);
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn the_folder_stays_bounded() {
        let at = folder("bounded");
        let cubins = Cubins { most_bytes: 20_000, ..Cubins::at(Some(at.clone())) };
        for i in 0..2 * LOOK_EVERY {
            cubins.put("k", &format!("source {i}"), &[7; 1000]);
        }
        let total: u64 = fs::read_dir(&at).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(total <= 20_000, "{total} bytes");
        assert!(cubins.get("k", &format!("source {}", 2 * LOOK_EVERY - 1)).is_some(), "the newest stay");
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn processes_may_share_the_folder() {
        let at = folder("shared");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let cubins = Cubins::at(Some(at.clone()));
                    for round in 0..50 {
                        let image = vec![1; 1000 + round];
                        cubins.put("k", "source", &image);
                        let got = cubins.get("k", "source");
                        assert!(got.is_none_or(|g| g.iter().all(|&b| b == 1)));
                    }
                });
            }
        });
        assert!(fs::read_dir(&at).unwrap().all(|e| e.unwrap().path().extension().is_some_and(|x| x == "cubin")));
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let cubins = Cubins::at(None);
        cubins.put("k", "source", b"image");
        assert_eq!(cubins.get("k", "source"), None);
    }
}
