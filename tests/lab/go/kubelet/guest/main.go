// The program of a lab's VM whose kubelet is a real one. It is the machine and
// its guest: `guest host` starts and ends the VM, as ESXi does; `guest boot`
// makes its file system and becomes `guest init`, its first process; `guest
// plugin` is a device plugin in a pod. As `lab` it is a network plugin of
// containerd. Without an argument it is what runs in the containers of pods.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func init() {
	// A namespace and the signal at the end of a parent belong to a thread.
	runtime.LockOSThread()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	if filepath.Base(os.Args[0]) == networkPlugin {
		return cni()
	}
	if len(os.Args) < 2 {
		return workload()
	}
	switch os.Args[1] {
	case "host":
		return host(os.Args[2:])
	case "boot":
		return boot(os.Args[2:])
	case "init":
		return initProcess(os.Args[2:])
	case "plugin":
		return pluginInPod(os.Args[2:])
	}
	return fmt.Errorf("unknown part %q: want host, boot, init, plugin or none", os.Args[1])
}
