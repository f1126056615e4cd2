//! Extended attributes, POSIX ACLs among them.
//!
//! They are reached by the pin's magic link, which names the pinned inode itself, symbolic links included.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;
use stockade_observe::{Op, Process};

use crate::error::FsResult;
use crate::fs::{Caller, Fs};
use crate::host::{self, Stat};
use crate::node::Node;
use crate::owner::Owner;

/// The largest value the kernel handles (`XATTR_SIZE_MAX`).
const LARGEST: usize = 64 * 1024;

impl Fs {
    pub fn getxattr(&self, id: u64, name: &OsStr) -> FsResult<Vec<u8>> {
        let node = self.node(id)?;
        let pin = self.table.pin(&node)?;
        let mut value = vec![0; LARGEST];
        let length = rustix::fs::getxattr(host::magic_link(pin.as_fd()), name, &mut value[..])?;
        value.truncate(length);
        if let Owner::User { uid, gid, .. } = self.owner
            && is_acl(name)
        {
            return Ok(mapped_acl(&value, uid, gid));
        }
        Ok(value)
    }

    pub fn listxattr(&self, id: u64) -> FsResult<Vec<u8>> {
        let node = self.node(id)?;
        let pin = self.table.pin(&node)?;
        let mut names = vec![0; LARGEST];
        let length = rustix::fs::listxattr(host::magic_link(pin.as_fd()), &mut names[..])?;
        names.truncate(length);
        Ok(names)
    }

    pub fn setxattr(
        &self,
        caller: Caller,
        id: u64,
        name: &OsStr,
        value: &[u8],
        flags: u32,
    ) -> FsResult<()> {
        let node = self.node(id)?;
        let held = self.inside_stat(&node);
        let who = self.who(caller);
        let event = Self::event(who.clone(), Op::Setxattr, self.path(&node), Some(node.key()));
        let mut before = None;
        let result = self.may_write(&node).and_then(|()| {
            let pin = self.sole_pin(&node, held?, &who)?;
            before = host::stat_fd(pin.as_fd()).ok();
            self.keeps_inode(&node, false);
            let link = host::magic_link(pin.as_fd());
            let flags = XattrFlags::from_bits_retain(flags);
            let set = || rustix::fs::setxattr(&link, name, value, flags);
            if !is_acl(name) {
                return Ok(set()?);
            }
            self.publishes_within(&node);
            // An ACL changes the mode, too: the set-group-id bit stays for those in the group alone.
            let gid = host::stat_fd(pin.as_fd())?.gid;
            Ok(if self.keeps_set_gid(caller, gid) {
                super::thread::keeping_set_id(set)
            } else {
                self.as_caller(caller, 0, false, set)
            }?)
        });
        if let (Ok(()), Some(before)) = (&result, before) {
            self.keeps_node_left(&node);
            self.touched(&node, &before);
        }
        self.audited(event, result)
    }

    pub fn removexattr(&self, caller: Caller, id: u64, name: &OsStr) -> FsResult<()> {
        let node = self.node(id)?;
        let held = self.inside_stat(&node);
        let who = self.who(caller);
        let event = Self::event(who.clone(), Op::Removexattr, self.path(&node), Some(node.key()));
        let mut before = None;
        let result = self.may_write(&node).and_then(|()| {
            let pin = self.sole_pin(&node, held?, &who)?;
            before = host::stat_fd(pin.as_fd()).ok();
            self.keeps_inode(&node, false);
            Ok(rustix::fs::removexattr(host::magic_link(pin.as_fd()), name)?)
        });
        if let (Ok(()), Some(before)) = (&result, before) {
            self.keeps_node_left(&node);
            self.touched(&node, &before);
        }
        self.audited(event, result)
    }
}

impl Fs {
    /// Returns the pin of a node whose change reaches no name that we don't know.
    fn sole_pin(
        &self,
        node: &Arc<Node>,
        (pin, stat): (Arc<OwnedFd>, Stat),
        who: &Arc<Process>,
    ) -> FsResult<Arc<OwnedFd>> {
        if node.kind != FileType::RegularFile {
            return Ok(pin);
        }
        self.make_sole(node, &stat, who)?;
        self.table.pin(node)
    }
}

fn is_acl(name: &OsStr) -> bool {
    name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

/// Drops the entries of an ACL that name users and groups which the mount's user namespace doesn't map: the kernel
/// refuses a list that holds one, and with it every access to the file. (Format: a 32-bit version, then entries of a
/// 16-bit tag, 16-bit permissions and a 32-bit id, little endian; `linux/posix_acl_xattr.h`.)
fn mapped_acl(value: &[u8], uid: u32, gid: u32) -> Vec<u8> {
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    let Some((version, entries)) = value.split_at_checked(4) else { return value.to_vec() };
    let mut kept = version.to_vec();
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        if (tag == USER && id != uid) || (tag == GROUP && id != gid) {
            continue;
        }
        kept.extend_from_slice(entry);
    }
    kept
}

/// Answers a request for a value by its size limit: 0 asks for the length alone.
pub fn fits(value: &[u8], size: u32) -> FsResult<Option<&[u8]>> {
    let limit = usize::try_from(size).unwrap_or(usize::MAX);
    if size == 0 {
        Ok(None)
    } else if value.len() > limit {
        Err(Errno::RANGE.into())
    } else {
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_acl_entries_are_left_out() {
        let entry = |tag: u16, perm: u16, id: u32| {
            [tag.to_le_bytes().to_vec(), perm.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()]
                .concat()
        };
        let version = 2_u32.to_le_bytes().to_vec();
        let undefined = u32::MAX;
        let full = [
            version.clone(),
            entry(0x01, 6, undefined),
            entry(0x02, 7, 1000),
            entry(0x02, 7, 0),
            entry(0x04, 4, undefined),
            entry(0x08, 7, 27),
            entry(0x10, 7, undefined),
            entry(0x20, 4, undefined),
        ]
        .concat();
        let kept = [
            version,
            entry(0x01, 6, undefined),
            entry(0x02, 7, 1000),
            entry(0x04, 4, undefined),
            entry(0x10, 7, undefined),
            entry(0x20, 4, undefined),
        ]
        .concat();
        assert_eq!(mapped_acl(&full, 1000, 1000), kept);
    }
}
