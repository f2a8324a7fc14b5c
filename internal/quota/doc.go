// Package quota limits the disk use of directories by project quotas (ext4, xfs) and qgroups (btrfs). Both require
// real root. A project quota counts every file that was created in a directory tree, a qgroup what a subvolume refers
// to. The package tests whether limits are enforced, and reports what is missing if they are not.
//
// A command in a sandbox cannot leave a project: only a process of the initial user namespace may change it, and a
// file cannot be renamed or linked into a directory of another project.
//
// It may be imported by rootfs, layer and box/probe; it imports fault, mounttable and visible.
package quota
