//! The order in which a reduction combines its elements, fixed once for every backend.
//!
//! Element `i` (linear, in logical order over the reduced axes) belongs to block `i / block` and
//! there to lane `i % lanes`. Within a lane of a block elements combine in index order. The lanes
//! of a block combine by halving: lane `j` with lane `j + lanes/2`, then `lanes/4`, … 1. Block
//! results combine pairwise with their neighbour, `((b0 b1)(b2 b3))…`, level by level, an odd last
//! one passing through. A lane without elements passes the other through, which equals combining with
//! [`Combine::identity`].
//!
//! [`Order::of`] depends on the logical shape and the reduced axes alone and does not change when
//! adjacent axes of one kind merge or unit axes come and go, so strides, threads, instruction
//! set and fusion cannot change a bit.

use crate::kernel::ir::Combine;

/// The shape of a reduction tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Order {
    /// Lanes of a block; a power of two.
    pub lanes: usize,
    /// Elements of a block; a multiple of `lanes`.
    pub block: usize,
}

impl Order {
    /// The last axis is reduced: its elements are spread over lanes. 128 is the width of a vector-machine
    /// tile and of a CUDA block (a single warp holds four lanes a thread, the first two halvings in registers).
    pub const ROWS: Order = Order { lanes: 128, block: 4096 };

    /// The last axis is kept: the kept elements are the parallel ones and a column is a plain chain.
    pub const COLUMNS: Order = Order { lanes: 1, block: 64 };

    /// The order of reductions over the axes marked in `reduced`.
    pub fn of(domain: &[usize], reduced: &[bool]) -> Order {
        let last = domain.iter().zip(reduced).rev().find(|&(&d, _)| d != 1);
        if last.is_none_or(|(_, &r)| r) { Order::ROWS } else { Order::COLUMNS }
    }

    /// Number of blocks of a reduction over `count` elements.
    pub fn blocks(&self, count: usize) -> usize {
        count.div_ceil(self.block)
    }

    /// Combines `values`, given in logical order: the reference.
    pub fn combine(&self, combine: Combine, values: impl Iterator<Item = u64>) -> u64 {
        let instr = combine.instr();
        let both = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(instr.eval(&[a, b])),
            (a, b) => a.or(b),
        };
        let values: Vec<u64> = values.collect();
        let mut level: Vec<Option<u64>> = values
            .chunks(self.block)
            .map(|block| {
                let mut lanes = vec![None; self.lanes];
                for (i, &v) in block.iter().enumerate() {
                    let lane = &mut lanes[i % self.lanes];
                    *lane = both(*lane, Some(v));
                }
                let mut half = self.lanes / 2;
                while half > 0 {
                    for j in 0..half {
                        lanes[j] = both(lanes[j], lanes[j + half]);
                    }
                    half /= 2;
                }
                lanes[0]
            })
            .collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|pair| both(pair[0], pair.get(1).copied().flatten())).collect();
        }
        level.first().copied().flatten().unwrap_or(combine.empty())
    }
}

/// Combines block results as they come, keeping one partial result per tree level:
/// the same tree as level-by-level pairing, in logarithmic memory.
#[derive(Clone, Debug)]
pub struct Pairwise<T> {
    /// Partial results over a power of two of blocks each (that power first), largest first.
    stack: Vec<(u32, T)>,
}

impl<T> Default for Pairwise<T> {
    fn default() -> Self {
        Pairwise { stack: Vec::new() }
    }
}

impl<T> Pairwise<T> {
    /// Adds the next block's result.
    pub fn push(&mut self, value: T, mut combine: impl FnMut(T, T) -> T) {
        let (mut level, mut value) = (0, value);
        while let Some((_, left)) = self.stack.pop_if(|top| top.0 == level) {
            value = combine(left, value);
            level += 1;
        }
        self.stack.push((level, value));
    }

    /// The result over all blocks, `None` if there were none.
    pub fn finish(mut self, mut combine: impl FnMut(T, T) -> T) -> Option<T> {
        let mut value = self.stack.pop()?.1;
        while let Some((_, left)) = self.stack.pop() {
            value = combine(left, value);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(order: Order, values: &[f32]) -> f32 {
        f32::from_bits(order.combine(Combine::Sum, values.iter().map(|v| v.to_bits() as u64)) as u32)
    }

    #[test]
    fn merging_axes_and_unit_axes_do_not_matter() {
        assert_eq!(Order::of(&[32, 10], &[false, true]), Order::ROWS);
        assert_eq!(Order::of(&[32, 10, 1], &[false, true, false]), Order::ROWS);
        assert_eq!(Order::of(&[32, 2, 5], &[false, true, true]), Order::ROWS);
        assert_eq!(Order::of(&[32, 10], &[true, false]), Order::COLUMNS);
        assert_eq!(Order::of(&[1, 32, 10, 1, 1], &[false, true, false, true, true]), Order::COLUMNS);
        assert_eq!(Order::of(&[32, 1], &[true, false]), Order::ROWS);
        assert_eq!(Order::of(&[], &[]), Order::ROWS);
    }

    #[test]
    fn the_tree_is_the_documented_one() {
        // Two lanes, blocks of four: (0+2)+(1+3) per block, blocks pairwise, the odd last one through.
        let order = Order { lanes: 2, block: 4 };
        let v: Vec<f32> = (0..19).map(|i| 1.0 / (i as f32 + 1.0)).collect();
        let block = |i: usize| (v[i] + v[i + 2]) + (v[i + 1] + v[i + 3]);
        let last = (v[16] + v[18]) + v[17];
        let expected = ((block(0) + block(4)) + (block(8) + block(12))) + last;
        assert_eq!(sum(order, &v).to_bits(), expected.to_bits());
    }

    #[test]
    fn edges_of_a_sum() {
        assert_eq!(sum(Order::ROWS, &[]).to_bits(), 0);
        assert_eq!(sum(Order::ROWS, &[-0.0]).to_bits(), (-0.0f32).to_bits());
        assert_eq!(sum(Order::ROWS, &vec![-0.0; 9000]).to_bits(), (-0.0f32).to_bits());
        assert_eq!(Order::ROWS.combine(Combine::LMax, [].into_iter()), i64::MIN as u64);
    }

    #[test]
    fn absent_lanes_equal_identities() {
        for combine in Combine::ALL {
            let values: Vec<u64> = (0..300u64)
                .map(|i| match combine.instr().result() {
                    crate::kernel::Ty::F32 => ((i as f32 * 0.7).sin() - 0.1).to_bits() as u64,
                    crate::kernel::Ty::F64 => ((i as f64 * 0.7).sin() - 0.1).to_bits(),
                    crate::kernel::Ty::Bool => (combine == Combine::All) as u64,
                    _ => i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                })
                .collect();
            for n in [1, 5, 127, 130, 300] {
                let padded = values[..n].iter().copied().chain(std::iter::repeat_n(combine.identity(), 512 - n));
                let order = Order { lanes: 128, block: 256 };
                assert_eq!(
                    order.combine(combine, values[..n].iter().copied()),
                    order.combine(combine, padded),
                    "{combine:?} {n}"
                );
            }
        }
    }

    #[test]
    fn the_streaming_tree_is_the_level_by_level_tree() {
        for n in 0..70 {
            let mut stream = Pairwise::default();
            for i in 0..n {
                stream.push(i.to_string(), |a, b| format!("({a} {b})"));
            }
            let mut level: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            while level.len() > 1 {
                level = level
                    .chunks(2)
                    .map(|p| if p.len() == 2 { format!("({} {})", p[0], p[1]) } else { p[0].clone() })
                    .collect();
            }
            assert_eq!(stream.finish(|a, b| format!("({a} {b})")), level.pop());
        }
    }
}
