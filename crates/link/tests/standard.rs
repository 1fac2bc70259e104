//! Standard descriptors that a program was started without.

use outboard_link::fill_standard_descriptors;

#[test]
fn descriptors_are_made_above_closed_standard_ones() {
    // SAFETY: the child makes system calls alone, and leaves without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child's copies of the standard descriptors, which nothing uses any more.
        unsafe { [libc::close(0), libc::close(2)] };
        fill_standard_descriptors();
        // SAFETY: calls with numbers and a literal.
        unsafe {
            let next = libc::eventfd(0, 0);
            let is_open = [0, 1, 2]
                .iter()
                .all(|fd| libc::fcntl(*fd, libc::F_GETFD) >= 0);
            libc::_exit(i32::from(next <= 2 || !is_open));
        }
    }
    let mut status = -1;
    // SAFETY: the child's number, and a local variable for its end.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}
