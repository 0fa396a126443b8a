package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// unified is where version 2 of control groups is mounted.
const unified = "/sys/fs/cgroup"

// hierarchy is a mounted hierarchy of control groups.
type hierarchy struct {
	// mount is where the machine has mounted it, parent the group there in which
	// those of guests are.
	mount, parent string
	// options are those of the mount, such as "cpu,cpuacct" or
	// "none,name=systemd"; empty if it is the only one, of version 2.
	options string
}

// hierarchies lists those of version 1 in which this process is, or the one of
// version 2.
func hierarchies() ([]hierarchy, error) {
	if _, err := os.Stat(unified + "/cgroup.controllers"); err == nil {
		// A group with processes has no groups with controllers, but the first one.
		return []hierarchy{{mount: unified, parent: unified}}, nil
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	// Such as "4:memory:/path".
	paths := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(groups)), "\n") {
		if parts := strings.SplitN(line, ":", 3); len(parts) == 3 && parts[1] != "" {
			paths[parts[1]] = parts[2]
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var all []hierarchy
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 || kind[0] != "cgroup" {
			continue
		}
		for controllers, path := range paths {
			if !serves(kind[2], controllers) {
				continue
			}
			// The mount may show a part of the hierarchy only.
			within, err := filepath.Rel(fields[3], path)
			if err != nil || strings.HasPrefix(within, "..") {
				within = "."
			}
			options := controllers
			if strings.HasPrefix(controllers, "name=") {
				options = "none," + controllers
			}
			h := hierarchy{mount: fields[4], parent: filepath.Join(fields[4], within), options: options}
			if !slices.ContainsFunc(all, func(o hierarchy) bool { return o.options == h.options }) {
				all = append(all, h)
			}
		}
	}
	return all, lines.Err()
}

// serves says whether a mount with these options is that of the controllers.
func serves(options, controllers string) bool {
	of := strings.Split(options, ",")
	for _, c := range strings.Split(controllers, ",") {
		if !slices.Contains(of, c) {
			return false
		}
	}
	return true
}

// makeGroups makes a group of this name in each hierarchy.
func makeGroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no control groups are mounted")
	}
	for _, h := range all {
		group := filepath.Join(h.parent, name)
		if h.options == "" {
			for _, controller := range []string{"cpuset", "cpu", "io", "memory", "pids"} {
				// The kubelet names what is missing.
				_ = os.WriteFile(filepath.Join(h.parent, "cgroup.subtree_control"), []byte("+"+controller), 0)
			}
		}
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// A new group of cpuset has no processors, and takes no process.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if b, err := os.ReadFile(filepath.Join(h.parent, file)); err == nil {
				if err := os.WriteFile(filepath.Join(group, file), b, 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// enterGroups puts this process into the groups of this name.
func enterGroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := os.WriteFile(filepath.Join(h.parent, name, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// leaveRoot moves this process out of the guest's own group of version 2, which
// gets groups with controllers.
func leaveRoot(name string) error {
	group := filepath.Join(unified, name, "init")
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0)
}

// removeGroups removes the groups of this name with all in them.
func removeGroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var failed error
	for _, h := range all {
		// A process that was killed leaves its group a moment later.
		for try := 0; ; try++ {
			err := removeGroup(filepath.Join(h.parent, name))
			if err == nil {
				break
			}
			if try == 200 {
				failed = errors.Join(failed, err)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return failed
}

// removeGroup removes a group after those in it.
func removeGroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}
