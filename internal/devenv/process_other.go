//go:build !linux

package devenv

import "syscall"

// dieWithParent does nothing where the kernel has no parent-death signal: a
// server left behind by a killed parent has to be stopped by hand. The lock on
// its directory, which it still holds, names it.
func dieWithParent(*syscall.SysProcAttr) {}
