//! A text as numbers, and the host's random numbers.

use std::io;
use std::path::{Path, PathBuf};

/// The characters of a text, numbered; the last tenth is held out.
pub struct Text {
    /// Every character that occurs, ascending.
    alphabet: Vec<char>,
    tokens: Vec<i64>,
}

impl Text {
    /// Reads a file, or all Rust files below a folder.
    pub fn read(path: &Path) -> io::Result<Text> {
        let mut text = String::new();
        for file in files(path)? {
            text += &std::fs::read_to_string(file)?;
        }
        let mut alphabet: Vec<char> = text.chars().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let number = |c: char| alphabet.binary_search(&c).unwrap_or(0) as i64;
        Ok(Text { tokens: text.chars().map(number).collect(), alphabet })
    }

    /// Number of different characters.
    pub fn vocabulary(&self) -> usize {
        self.alphabet.len()
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn training(&self) -> &[i64] {
        &self.tokens[..self.tokens.len() * 9 / 10]
    }

    pub fn held_out(&self) -> &[i64] {
        &self.tokens[self.tokens.len() * 9 / 10..]
    }

    pub fn decode(&self, tokens: &[i64]) -> String {
        tokens.iter().filter_map(|&t| self.alphabet.get(t as usize)).collect()
    }
}

/// The file itself, or the Rust files below a folder in the order of their paths.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let mut entries = std::fs::read_dir(path)?.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    let mut out = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            out.extend(files(&entry)?);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            out.push(entry);
        }
    }
    Ok(out)
}

/// splitmix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A position, with a probability in proportion to its weight.
    pub fn choose(&mut self, weights: &[f32]) -> usize {
        let unit = (self.next() >> 11) as f32 / (1u64 << 53) as f32;
        let mut left = unit * weights.iter().sum::<f32>();
        let place = weights.iter().position(|w| {
            left -= w;
            left < 0.0
        });
        place.unwrap_or(weights.len() - 1)
    }
}
