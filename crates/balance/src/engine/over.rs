//! The order in which connections that are over make room: of all, and of each backend's.

use outboard_flow::NONE;

/// Place of an index in a list.
#[derive(Clone, Copy)]
struct Link {
    list: u32,
    before: u32,
    after: u32,
}

const UNLINKED: Link = Link {
    list: NONE,
    before: NONE,
    after: NONE,
};

/// Lists of indexes, the oldest first. An index is in one list, or in none.
struct Lists {
    links: Vec<Link>,
    /// First and last of each list.
    ends: Vec<[u32; 2]>,
}

impl Lists {
    fn new(max: usize) -> Lists {
        Lists {
            links: Vec::with_capacity(max),
            ends: Vec::new(),
        }
    }

    fn first(&self, list: u32) -> u32 {
        self.ends.get(list as usize).map_or(NONE, |ends| ends[0])
    }

    fn after(&self, index: u32) -> u32 {
        self.links
            .get(index as usize)
            .map_or(NONE, |link| link.after)
    }

    fn push(&mut self, list: u32, index: u32) {
        self.remove(index);
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, UNLINKED);
        }
        if self.ends.len() <= list as usize {
            self.ends.resize(list as usize + 1, [NONE; 2]);
        }
        let [first, last] = &mut self.ends[list as usize];
        let before = std::mem::replace(last, index);
        self.links[index as usize] = Link {
            list,
            before,
            after: NONE,
        };
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = index,
            None => *first = index,
        }
    }

    fn remove(&mut self, index: u32) {
        let Some(place) = self.links.get_mut(index as usize) else {
            return;
        };
        let link = std::mem::replace(place, UNLINKED);
        let Some([first, last]) = self.ends.get_mut(link.list as usize) else {
            return;
        };
        match self.links.get_mut(link.before as usize) {
            Some(before) => before.after = link.after,
            None => *first = link.after,
        }
        match self.links.get_mut(link.after as usize) {
            Some(after) => after.before = link.before,
            None => *last = link.before,
        }
    }
}

/// Connections that are over, by when that was.
pub(super) struct Over {
    all: Lists,
    of_backends: Lists,
}

impl Over {
    pub(super) fn new(max: usize) -> Over {
        Over {
            all: Lists::new(max),
            of_backends: Lists::new(max),
        }
    }

    pub(super) fn push(&mut self, backend: u32, index: u32) {
        self.all.push(0, index);
        self.of_backends.push(backend, index);
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.all.remove(index);
        self.of_backends.remove(index);
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        Some(self.all.first(0)).filter(|first| *first != NONE)
    }

    /// Returns those of a backend, the oldest first.
    pub(super) fn of_backend(&self, backend: u32) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.of_backends.first(backend);
        std::iter::from_fn(move || {
            let index = next;
            next = self.of_backends.after(index);
            (index != NONE).then_some(index)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_flow::random::Random;

    #[test]
    fn orders_are_those_of_a_plain_list() {
        let (mut over, mut plain) = (Over::new(16), Vec::<(u32, u32)>::new());
        let mut random = Random::new(7);
        for _ in 0..5000 {
            let (backend, index) = (random.below(3) as u32, random.below(40) as u32);
            plain.retain(|one| one.1 != index);
            if random.below(3) == 0 {
                over.remove(index);
            } else {
                over.push(backend, index);
                plain.push((backend, index));
            }
            assert_eq!(over.oldest(), plain.first().map(|one| one.1));
            for backend in 0..4 {
                let of = plain.iter().filter(|one| one.0 == backend);
                let of: Vec<_> = of.map(|one| one.1).collect();
                assert_eq!(over.of_backend(backend).collect::<Vec<_>>(), of);
            }
        }
    }
}
