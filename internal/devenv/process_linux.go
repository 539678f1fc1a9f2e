package devenv

import "syscall"

// dieWithParent has the kernel kill the child when the thread that started it
// ends. A kill, because a server that shuts down slowly would still be in the
// way of the next start on the same directory; both recover from it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
