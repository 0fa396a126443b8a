// The lab's CSI driver: it attaches volumes that do not exist, and can hold their detachment.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	name string

	mu       sync.Mutex
	released chan struct{} // closed if detachments go on
	held     bool
	calls    []call
}

// call is a call that changes something.
type call struct {
	Method string `json:"method"`
	Volume string `json:"volume"`
	Node   string `json:"node"`
	Done   bool   `json:"done"`
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: service}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{
		{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}},
	}}, nil
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call{Method: "ControllerPublishVolume", Volume: r.VolumeId, Node: r.NodeId, Done: true})
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	number, released := len(d.calls), d.released
	d.calls = append(d.calls, call{Method: "ControllerUnpublishVolume", Volume: r.VolumeId, Node: r.NodeId})
	d.mu.Unlock()
	select {
	case <-released:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[number].Done = true
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// hold makes detachments wait, or lets those that wait go on.
func (d *driver) hold(held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if held == d.held {
		return
	}
	d.held = held
	if held {
		d.released = make(chan struct{})
	} else {
		close(d.released)
	}
}

func (d *driver) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hold", func(http.ResponseWriter, *http.Request) { d.hold(true) })
	mux.HandleFunc("POST /release", func(http.ResponseWriter, *http.Request) { d.hold(false) })
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		_ = json.NewEncoder(w).Encode(append([]call{}, d.calls...))
	})
	return mux
}

func main() {
	name := flag.String("name", "", "the driver's name")
	socket := flag.String("socket", "", "the path of the Unix socket")
	address := flag.String("control", "", "the address of the control endpoint")
	flag.Parse()
	if os.Getenv("HAULOUT_LAB_STDIN_LEASH") == "1" {
		go leash()
	}
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		log.Fatal(err)
	}
	released := make(chan struct{})
	close(released)
	d := &driver{name: *name, released: released}
	go func() { log.Fatal(http.ListenAndServe(*address, d.control())) }()
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	log.Fatal(server.Serve(listener))
}

// leash ends this process when stdin reaches EOF, and removes the directory of
// its starter, as the lab's control plane does.
func leash() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	dir := os.Getenv("HAULOUT_LAB_REMOVE_AT_EOF")
	if filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), "haulout-lab-") {
		_ = os.RemoveAll(dir)
	}
	os.Exit(0)
}
