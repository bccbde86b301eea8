package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/liteboxd/boxlift/test/k3s/containerd"
)

// crictl does what tests ask of cri-tools' program of that name: images,
// inspecti, rmi, pull, ps, pods, info and version, with -o json, -q and -a.
func crictl(args []string) error {
	var words []string
	output, quiet, all := "", false, false
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		name, value, hasValue := strings.Cut(arg, "=")
		switch name {
		case "-o", "--output", "-r", "--runtime-endpoint", "-i", "--image-endpoint", "-t", "--timeout":
			if !hasValue {
				if len(args) == 0 {
					return fmt.Errorf("flag needs an argument: %s", name)
				}
				value, args = args[0], args[1:]
			}
			if name == "-o" || name == "--output" {
				output = value
			}
		case "-q", "--quiet":
			quiet = true
		case "-a", "--all":
			all = true
		default:
			if strings.HasPrefix(arg, "-") {
				return fmt.Errorf("flag provided but not defined: %s", arg)
			}
			words = append(words, arg)
		}
	}
	if len(words) == 0 {
		return errors.New("crictl: no command")
	}
	conn, err := grpc.NewClient("unix://"+containerd.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := criTool{ctx: ctx, images: cri.NewImageServiceClient(conn), runtime: cri.NewRuntimeServiceClient(conn),
		json: output == "json", quiet: quiet, all: all}
	switch command, rest := words[0], words[1:]; command {
	case "images", "image", "img":
		return c.listImages(rest)
	case "inspecti":
		return c.each(rest, c.inspectImage)
	case "rmi":
		return c.each(rest, func(name string) error {
			_, err := c.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: name}})
			return err
		})
	case "pull":
		return c.each(rest, func(name string) error {
			_, err := c.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}})
			return err
		})
	case "ps":
		return c.containers()
	case "pods":
		return c.pods()
	case "info":
		reply, err := c.runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
		return show(reply, err)
	case "version":
		reply, err := c.runtime.Version(ctx, &cri.VersionRequest{})
		return show(reply, err)
	default:
		return fmt.Errorf("crictl %s: this distribution, which is for tests, does not have it", command)
	}
}

type criTool struct {
	ctx              context.Context
	images           cri.ImageServiceClient
	runtime          cri.RuntimeServiceClient
	json, quiet, all bool
}

func (c criTool) each(names []string, do func(string) error) error {
	if len(names) == 0 {
		return errors.New("crictl: no image named")
	}
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

func show(message protoadapt.MessageV1, err error) error {
	if err != nil {
		return err
	}
	return printJSON(protoadapt.MessageV2Of(message))
}

// printJSON prints a message as crictl does: all fields, fixed spacing.
func printJSON(message proto.Message) error {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return err
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func (c criTool) listImages(names []string) error {
	request := &cri.ListImagesRequest{}
	if len(names) > 0 {
		request.Filter = &cri.ImageFilter{Image: &cri.ImageSpec{Image: names[0]}}
	}
	reply, err := c.images.ListImages(c.ctx, request)
	if err != nil {
		return err
	}
	slices.SortFunc(reply.Images, func(a, b *cri.Image) int { return slices.Compare(a.RepoTags, b.RepoTags) })
	if c.json {
		return show(reply, nil)
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if !c.quiet {
		fmt.Fprintln(out, "IMAGE\tTAG\tIMAGE ID\tSIZE")
	}
	for _, image := range reply.Images {
		if c.quiet {
			fmt.Fprintln(out, image.Id)
			continue
		}
		tags := image.RepoTags
		if len(tags) == 0 {
			tags = []string{"<none>:<none>"}
		}
		for _, tag := range tags {
			at := strings.LastIndex(tag, ":")
			fmt.Fprintf(out, "%s\t%s\t%.13s\t%.1fMB\n", tag[:at], tag[at+1:], strings.TrimPrefix(image.Id, "sha256:"), float64(image.Size)/1e6)
		}
	}
	return out.Flush()
}

func (c criTool) inspectImage(name string) error {
	reply, err := c.images.ImageStatus(c.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		return err
	}
	if reply.Image == nil {
		return fmt.Errorf("no such image %q present", name)
	}
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(protoadapt.MessageV2Of(reply.Image))
	if err != nil {
		return err
	}
	var status any
	if err := json.Unmarshal(text, &status); err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"status": status})
}

func (c criTool) containers() error {
	request := &cri.ListContainersRequest{}
	if !c.all {
		request.Filter = &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}
	}
	reply, err := c.runtime.ListContainers(c.ctx, request)
	if err != nil || c.json {
		return show(reply, err)
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if !c.quiet {
		fmt.Fprintln(out, "CONTAINER\tIMAGE\tCREATED\tSTATE\tNAME\tATTEMPT\tPOD ID\tPOD\tNAMESPACE")
	}
	for _, k := range reply.Containers {
		if c.quiet {
			fmt.Fprintln(out, k.Id)
			continue
		}
		fmt.Fprintf(out, "%.13s\t%.13s\t%s\t%s\t%s\t%d\t%.13s\t%s\t%s\n", k.Id, strings.TrimPrefix(k.ImageRef, "sha256:"), age(k.CreatedAt),
			state(k.State.String()), k.Metadata.GetName(), k.Metadata.GetAttempt(), k.PodSandboxId,
			k.Labels["io.kubernetes.pod.name"], k.Labels["io.kubernetes.pod.namespace"])
	}
	return out.Flush()
}

func (c criTool) pods() error {
	reply, err := c.runtime.ListPodSandbox(c.ctx, &cri.ListPodSandboxRequest{})
	if err != nil || c.json {
		return show(reply, err)
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if !c.quiet {
		fmt.Fprintln(out, "POD ID\tCREATED\tSTATE\tNAME\tNAMESPACE\tATTEMPT\tRUNTIME")
	}
	for _, p := range reply.Items {
		if c.quiet {
			fmt.Fprintln(out, p.Id)
			continue
		}
		fmt.Fprintf(out, "%.13s\t%s\t%s\t%s\t%s\t%d\t(default)\n", p.Id, age(p.CreatedAt), state(p.State.String()),
			p.Metadata.GetName(), p.Metadata.GetNamespace(), p.Metadata.GetAttempt())
	}
	return out.Flush()
}

func age(nanoseconds int64) string {
	return time.Since(time.Unix(0, nanoseconds)).Round(time.Second).String() + " ago"
}

// state is the last word of SANDBOX_READY or CONTAINER_RUNNING, as crictl writes it.
func state(name string) string {
	word := strings.ToLower(name[strings.LastIndex(name, "_")+1:])
	return strings.ToUpper(word[:1]) + word[1:]
}
