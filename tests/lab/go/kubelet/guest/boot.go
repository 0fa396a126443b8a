package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// programs is where the guest has the programs of the lab.
const programs = "/opt/lab"

// tunables are settings of the kernel that a kubelet makes. Files with its
// values are mounted over them, so that those of the machine stay.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// boot runs in new namespaces. It makes the file system of the guest, all
// mounts of which end with them, and becomes its first process.
func boot(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: guest boot CONFIG")
	}
	config, err := readConfig(args[0])
	if err != nil {
		return err
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if err := enterGroups(config.Groups); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a namespace of control groups: %w", err)
	}
	if len(all) == 1 && all[0].options == "" {
		if err := leaveRoot(config.Groups); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	r := root(filepath.Join(config.Dir, "root"))
	for _, step := range []func() error{
		func() error { return r.skeleton(config) },
		func() error { return r.bindPrograms(config, self) },
		r.kernel,
		func() error { return r.groups(all) },
		r.identity,
		r.pivot,
		func() error { return unix.Sethostname([]byte(config.Name)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	return syscall.Exec(programs+"/guest", []string{"guest", "init", "/etc/lab/config.json"}, env)
}

// root is the root of a guest's file system, as the machine sees it.
type root string

func (r root) at(path string) string { return filepath.Join(string(r), path) }

func (r root) mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, r.at(target), kind, flags, options); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}

// bind shows a file or a folder of the machine in the guest.
func (r root) bind(source, target string, readOnly bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if _, err := os.Stat(r.at(target)); errors.Is(err, fs.ErrNotExist) {
		if info.IsDir() {
			err = os.MkdirAll(r.at(target), 0o755)
		} else {
			err = os.WriteFile(r.at(target), nil, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if err := r.mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil || !readOnly {
		return err
	}
	return r.mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// skeleton makes the folders and the files of a small system.
func (r root) skeleton(config *Config) error {
	if err := unix.Mount(string(r), string(r), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for _, dir := range []string{
		"proc", "sys", "dev", "run", "tmp", "root", "usr", "opt/cni/bin", "opt/lab", "etc/lab/kernel", "etc/cni/net.d",
		"var/lib/kubelet", "var/log", "var/tmp",
	} {
		if err := os.MkdirAll(r.at(dir), 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{
		"etc/passwd":      "root:x:0:0::/root:/bin/sh\n",
		"etc/group":       "root:x:0:\n",
		"etc/hosts":       "127.0.0.1 localhost\n",
		"etc/hostname":    config.Name + "\n",
		"etc/resolv.conf": "",
		"etc/cni/net.d/10-lab.conflist": `{"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "` +
			networkPlugin + `"}]}`,
		"etc/lab/containerd.toml": containerdConfig(config),
		"etc/lab/dbus.conf":       busConfig,
	}
	for name, text := range files {
		if err := os.WriteFile(r.at(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, link := range [][2]string{{"../run", "var/run"}, {programs + "/guest", "opt/cni/bin/" + networkPlugin}} {
		if err := os.Symlink(link[0], r.at(link[1])); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// bindPrograms shows the system of the machine, which runc needs, and the
// programs of the lab.
func (r root) bindPrograms(config *Config, self string) error {
	if err := r.bind("/usr", "/usr", true); err != nil {
		return err
	}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		target, err := os.Readlink(dir)
		switch {
		case err == nil:
			if err := os.Symlink(target, r.at(dir)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		case errors.Is(err, fs.ErrNotExist):
		default:
			if err := r.bind(dir, dir, true); err != nil {
				return err
			}
		}
	}
	for source, target := range map[string]string{
		self:                                     programs + "/guest",
		config.Kubelet:                           programs + "/kubelet",
		config.Containerd:                        programs + "/containerd",
		config.Runc:                              programs + "/runc",
		filepath.Join(config.Dir, "config.json"): "/etc/lab/config.json",
	} {
		if err := r.bind(source, target, true); err != nil {
			return err
		}
	}
	return nil
}

// kernel mounts what the kernel serves.
func (r root) kernel() error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := r.mount("proc", "/proc", "proc", flags, ""); err != nil {
		return err
	}
	if err := r.mount("sysfs", "/sys", "sysfs", flags, ""); err != nil {
		return err
	}
	if err := r.bind("/dev", "/dev", false); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/tmp"} {
		if err := r.mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return err
		}
	}
	for name, value := range tunables {
		if _, err := os.Stat(r.at("/proc/sys/" + name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		file := r.at("/etc/lab/kernel/" + filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := r.bind(file, "/proc/sys/"+name, false); err != nil {
			return err
		}
	}
	return nil
}

// groups mounts the hierarchies again: in the new namespace, the guest's own
// group is the root of each.
func (r root) groups(all []hierarchy) error {
	if len(all) == 1 && all[0].options == "" {
		return r.mount("cgroup2", unified, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err := r.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return err
	}
	for _, h := range all {
		target := "/sys/fs/cgroup/" + filepath.Base(h.mount)
		if err := os.MkdirAll(r.at(target), 0o755); err != nil {
			return err
		}
		if err := r.mount("cgroup", target, "cgroup", 0, h.options); err != nil {
			return err
		}
	}
	return nil
}

// identity gives the guest a boot id of its own, and firmware that knows the
// UUID of the VM: a file of the guest, so that its next kubelet can read
// another one.
func (r root) identity() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.at("/etc/lab/boot_id"), boot, 0o444); err != nil {
		return err
	}
	if err := r.bind(r.at("/etc/lab/boot_id"), "/proc/sys/kernel/random/boot_id", true); err != nil {
		return err
	}
	if err := os.WriteFile(r.at(uuidFile), nil, 0o644); err != nil {
		return err
	}
	const known = "/sys/class/dmi/id/product_uuid"
	if _, err := os.Stat(r.at(known)); err == nil {
		return r.bind(r.at(uuidFile), known, false)
	}
	// A machine without DMI: /sys/class as it is, with one folder more.
	classes, err := os.ReadDir(r.at("/sys/class"))
	if err != nil {
		return err
	}
	links := map[string]string{}
	for _, class := range classes {
		devices, err := os.ReadDir(r.at("/sys/class/" + class.Name()))
		if err != nil {
			continue
		}
		for _, device := range devices {
			path := class.Name() + "/" + device.Name()
			if target, err := os.Readlink(r.at("/sys/class/" + path)); err == nil {
				links[path] = target
			}
		}
	}
	if err := r.mount("tmpfs", "/sys/class", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return err
	}
	for path, target := range links {
		at := r.at("/sys/class/" + path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, at); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(r.at(known)), 0o755); err != nil {
		return err
	}
	return r.bind(r.at(uuidFile), known, false)
}

// pivot makes it the root of this process, and lets go of that of the machine.
func (r root) pivot() error {
	if err := os.Chdir(string(r)); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Volumes that the kubelet mounts have to reach containers.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}
