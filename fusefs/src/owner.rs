//! Whose mount it is, and how host owners are shown in it.

use crate::host::Stat;

/// Who owns the mount, which decides how owners are shown and what the server may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Mounted by root in the initial user namespace: owners are the host's, requests come from any user.
    Root,
    /// Mounted by an ordinary user, in a user namespace that maps this one user and group (or by `fusermount3`).
    User {
        /// The user's id, the same inside and outside.
        uid: u32,
        /// The user's group id, the same inside and outside.
        gid: u32,
        /// The user's supplementary groups on the host.
        groups: Vec<u32>,
    },
}

impl Owner {
    /// Shows a host file's owner so that what is natively allowed works inside.
    ///
    /// The kernel refuses every write to an inode whose owner or group isn't mapped into the mount's user namespace
    /// (`HAS_UNMAPPED_ID` in `fs/namei.c`), even where the mode allows it, as in `/tmp`. So an inode that the user may
    /// change natively is shown as the user's own, with the permission bits that apply to the user natively; any other
    /// is shown as it is, which inside reads as `nobody`.
    pub fn present(&self, stat: &mut Stat) {
        let Self::User { uid, gid, groups } = self else { return };
        if stat.uid == *uid {
            if stat.gid != *gid {
                stat.gid = *gid;
            }
            return;
        }
        let in_group = stat.gid == *gid || groups.contains(&stat.gid);
        let bits = if in_group { (stat.mode >> 3) & 0o7 } else { stat.mode & 0o7 };
        if bits & 0o2 != 0 {
            stat.uid = *uid;
            stat.gid = *gid;
            stat.mode = (stat.mode & !0o777) | (bits << 6) | (bits << 3) | (stat.mode & 0o7);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_may_change_is_shown_as_the_users() {
        let owner = Owner::User { uid: 1000, gid: 1000, groups: vec![27] };
        let rows = [
            // uid, gid, mode -> uid, gid, mode
            ((0, 0, 0o041_777), (1000, 1000, 0o041_777)),
            ((0, 0, 0o100_644), (0, 0, 0o100_644)),
            ((0, 27, 0o100_664), (1000, 1000, 0o100_664)),
            ((0, 27, 0o100_620), (1000, 1000, 0o100_220)),
            ((1000, 27, 0o100_644), (1000, 1000, 0o100_644)),
            ((1001, 1001, 0o100_600), (1001, 1001, 0o100_600)),
        ];
        for ((uid, gid, mode), expected) in rows {
            let mut stat = Stat { uid, gid, mode, ..Stat::default() };
            owner.present(&mut stat);
            assert_eq!((stat.uid, stat.gid, stat.mode), expected, "{uid}:{gid} {mode:o}");
        }
    }
}
