package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// A guest has a network of its own, with no way out of it. Servers on the
// loopback of the machine are reached through sockets in the guest's folder, and
// so is its kubelet from there.

// networkPlugin is the name of this program as a network plugin.
const networkPlugin = "lab"

// socketFolder is where the guest has the sockets.
const socketFolder = "/etc/lab/net"

// Network is what a guest reaches.
type Network struct {
	// Gateway is the guest as its pods see it.
	Gateway string `json:"gateway"`
	// Service is the address of the Service `kubernetes`, and Apiserver the port
	// of the kube-apiserver behind it.
	Service   string `json:"service"`
	Apiserver int    `json:"apiserver"`
	// Reaches are ports of other servers. They are the same on each address of
	// the guest.
	Reaches []int `json:"reaches"`
	// Kubelet is the port of the kubelet, in the guest and on the machine.
	Kubelet int `json:"kubelet"`
}

func socket(folder, direction string, port int) string {
	return filepath.Join(folder, direction+"-"+strconv.Itoa(port))
}

func onLoopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// connectMachine is the machine's side. It lasts over all boots of the guest.
func (n *Network) connectMachine(root string) error {
	folder := filepath.Join(root, socketFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, port := range append([]int{n.Apiserver}, n.Reaches...) {
		if err := forward("unix", socket(folder, "out", port), "tcp", onLoopback(port)); err != nil {
			return err
		}
	}
	return forward("tcp", onLoopback(n.Kubelet), "unix", socket(folder, "in", n.Kubelet))
}

// connectGuest is the guest's side of one boot.
func (n *Network) connectGuest() error {
	setUp := fmt.Sprintf("link set lo up\naddress add %s/32 dev lo\naddress add %s/32 dev lo\n", n.Gateway, n.Service)
	if err := ip("", setUp); err != nil {
		return err
	}
	for _, port := range append([]int{n.Apiserver}, n.Reaches...) {
		out := socket(socketFolder, "out", port)
		if err := forward("tcp", "0.0.0.0:"+strconv.Itoa(port), "unix", out); err != nil {
			return err
		}
	}
	if err := forward("tcp", n.Service+":443", "unix", socket(socketFolder, "out", n.Apiserver)); err != nil {
		return err
	}
	in := socket(socketFolder, "in", n.Kubelet)
	// That of the last boot.
	_ = os.Remove(in)
	return forward("unix", in, "tcp", onLoopback(n.Kubelet))
}

// forward passes connections on until this process ends.
func forward(network, address, toNetwork, toAddress string) error {
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				// Where nobody listens, the connection is closed.
				if server, err := net.Dial(toNetwork, toAddress); err == nil {
					join(client, server)
				}
			}()
		}
	}()
	return nil
}

func join(client, server net.Conn) {
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(client, server)
	}()
	pass(server, client)
	<-done
}

// pass copies until one side has ended, and tells the other.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// ip runs commands of ip in a network namespace with this name, or in the
// present one.
func ip(namespace, commands string) error {
	args := []string{"-batch", "-"}
	if namespace != "" {
		args = append([]string{"-netns", namespace}, args...)
	}
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %q: %w: %s", commands, err, out)
	}
	return nil
}

// cni connects a pod with its guest.
func cni() error {
	const version = "1.0.0"
	switch os.Getenv("CNI_COMMAND") {
	case "VERSION":
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": version, "supportedVersions": []string{"0.4.0", version}})
	case "ADD":
		h := fnv.New32a()
		_, _ = io.WriteString(h, os.Getenv("CNI_CONTAINERID"))
		n := h.Sum32()
		address := fmt.Sprintf("10.88.%d.%d", n>>8&0xff, n&0xff|1)
		if err := connectPod(filepath.Base(os.Getenv("CNI_NETNS")), os.Getenv("CNI_IFNAME"), address, n); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"cniVersion": version,
			"interfaces": []map[string]any{{"name": os.Getenv("CNI_IFNAME"), "sandbox": os.Getenv("CNI_NETNS")}},
			"ips":        []map[string]any{{"address": address + "/16", "interface": 0}},
		})
	}
	// With the namespace of the pod, both ends of its cable are gone.
	return nil
}

func connectPod(namespace, inside, address string, id uint32) error {
	config, err := readConfig("/etc/lab/config.json")
	if err != nil {
		return err
	}
	gateway, outside := config.Network.Gateway, fmt.Sprintf("pod%x", id)
	err = ip("", fmt.Sprintf("link add %s type veth peer name %s netns %s\nlink set %s up\nroute add %s dev %s scope link\n",
		outside, inside, namespace, outside, address, outside))
	if err != nil {
		return err
	}
	return ip(namespace, fmt.Sprintf("address add %s/32 dev %s\nlink set lo up\nlink set %s up\nroute add %s dev %s scope link\nroute add default via %s dev %s\n",
		address, inside, inside, gateway, inside, gateway, inside))
}
