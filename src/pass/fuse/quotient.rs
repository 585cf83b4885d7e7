//! The graph of groups, kept acyclic while groups are merged.
//!
//! Groups have positions in one topological order; a merge searches only between the two groups'
//! positions, and moves only what lies there (the idea of Pearce and Kelly's dynamic order).

use petgraph::unionfind::UnionFind;

/// Groups of items under merging.
pub struct Quotient {
    sets: UnionFind<u32>,
    /// Per representative: groups that depend on it (stale names are looked up when read).
    users: Vec<Vec<u32>>,
    position: Vec<u32>,
    /// Representative at each position; `NONE` where a merge left a gap.
    order: Vec<u32>,
    seen: Vec<u32>,
    stamp: u32,
}

const NONE: u32 = u32::MAX;

impl Quotient {
    /// One group per item; items are numbered in topological order.
    pub fn new(items: usize) -> Quotient {
        let all: Vec<u32> = (0..items as u32).collect();
        Quotient {
            sets: UnionFind::new(items),
            users: vec![Vec::new(); items],
            position: all.clone(),
            order: all,
            seen: vec![0; items],
            stamp: 0,
        }
    }

    /// Records that `user` depends on `from`.
    pub fn depend(&mut self, from: u32, user: u32) {
        let (from, user) = (self.find(from), self.find(user));
        if from != user {
            self.users[from as usize].push(user);
        }
    }

    /// The group of an item.
    pub fn find(&mut self, item: u32) -> u32 {
        self.sets.find_mut(item)
    }

    /// The group of an item, without shortening the way to it.
    pub fn peek(&self, item: u32) -> u32 {
        self.sets.find(item)
    }

    /// Merges two groups unless that would close a cycle: unless one reaches the other by way of a third.
    /// Returns the merged group's name.
    pub fn merge(&mut self, a: u32, b: u32) -> Option<u32> {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return Some(a);
        }
        let (first, last) = if self.position[a as usize] < self.position[b as usize] { (a, b) } else { (b, a) };
        let (from, to) = (self.position[first as usize], self.position[last as usize]);
        let after = self.between(first, last, to)?;
        // Everything that depends on `first` moves behind the merged group; the rest stays before it.
        let window: Vec<u32> = self.order[from as usize..=to as usize].to_vec();
        let (mut kept, mut moved) = (Vec::with_capacity(window.len()), Vec::with_capacity(after));
        for &g in &window {
            if g == NONE || g == first || g == last {
                continue;
            }
            if self.seen[g as usize] == self.stamp { moved.push(g) } else { kept.push(g) }
        }
        self.sets.union(first, last);
        let merged = self.find(first);
        let other = if merged == first { last } else { first };
        let users = std::mem::take(&mut self.users[other as usize]);
        self.users[merged as usize].extend(users);
        self.tidy(merged);
        let mut at = from;
        for g in kept.into_iter().chain([merged]).chain(moved) {
            self.order[at as usize] = g;
            self.position[g as usize] = at;
            at += 1;
        }
        for gap in at..=to {
            self.order[gap as usize] = NONE;
        }
        Some(merged)
    }

    /// Marks the groups between that depend on `first`, and counts them; `None` if one of them leads to `last`.
    fn between(&mut self, first: u32, last: u32, limit: u32) -> Option<usize> {
        self.stamp += 1;
        let mut count = 0;
        let mut stack = vec![first];
        while let Some(g) = stack.pop() {
            for i in 0..self.users[g as usize].len() {
                let u = self.sets.find_mut(self.users[g as usize][i]);
                if u == last && g != first {
                    return None;
                }
                if u == first || u == last || self.position[u as usize] > limit || self.seen[u as usize] == self.stamp {
                    continue;
                }
                self.seen[u as usize] = self.stamp;
                count += 1;
                stack.push(u);
            }
        }
        Some(count)
    }

    /// Drops repeated and own names from a group's users.
    fn tidy(&mut self, group: u32) {
        let mut users = std::mem::take(&mut self.users[group as usize]);
        for u in &mut users {
            *u = self.sets.find_mut(*u);
        }
        users.sort_unstable();
        users.dedup();
        users.retain(|&u| u != group);
        self.users[group as usize] = users;
    }

    /// The groups in a topological order.
    pub fn order(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().copied().filter(|&g| g != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_that_would_close_a_cycle_is_refused() {
        // 0 -> 1 -> 2, 0 -> 2
        let mut q = Quotient::new(3);
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            q.depend(a, b);
        }
        assert_eq!(q.merge(0, 2), None);
        let g = q.merge(0, 1).unwrap();
        assert!(q.merge(g, 2).is_some());
        assert_eq!(q.order().count(), 1);
    }

    #[test]
    fn the_order_stays_topological() {
        // A ladder: i -> i + 2, i -> i + 3.
        let n = 40;
        let mut q = Quotient::new(n as usize);
        let edges: Vec<(u32, u32)> = (0..n).flat_map(|i| [(i, i + 2), (i, i + 3)]).filter(|e| e.1 < n).collect();
        for &(a, b) in &edges {
            q.depend(a, b);
        }
        for (a, b) in [(0, 1), (4, 5), (8, 10), (1, 3), (20, 21), (21, 23), (30, 33), (2, 30), (38, 39)] {
            let merged = q.merge(a, b);
            let order: Vec<u32> = q.order().collect();
            for &(from, to) in &edges {
                let (f, t) = (q.find(from), q.find(to));
                let at = |g| order.iter().position(|&o| o == g).unwrap();
                assert!(f == t || at(f) < at(t), "{from} -> {to} after {a}, {b}: {merged:?}");
            }
        }
    }
}
