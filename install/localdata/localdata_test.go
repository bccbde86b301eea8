package localdata

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// node is a node whose label has another name than it.
func node(name string) corev1.Node {
	var n corev1.Node
	n.Name, n.Labels = name, map[string]string{corev1.LabelHostname: name + ".lan", "zone": "z-" + name}
	return n
}

// local is a volume of k3s' own provisioner with a claim, bound to nodes by their label.
func local(namespace, claim string, hostnames ...string) corev1.PersistentVolume {
	var v corev1.PersistentVolume
	v.Name = "pvc-" + claim
	v.Spec.Local = &corev1.LocalVolumeSource{Path: "/storage/pvc-" + claim}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim}
	v.Status.Phase = corev1.VolumeBound
	bind(&v, in(corev1.LabelHostname, hostnames...))
	return v
}

// in asks for a label with one of some values.
func in(label string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: values}
}

// bind lets a volume be used from the nodes that have what each of the expressions asks for.
func bind(v *corev1.PersistentVolume, all ...corev1.NodeSelectorRequirement) {
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: all}},
	}}
}

func edited(v corev1.PersistentVolume, edit func(*corev1.PersistentVolume)) corev1.PersistentVolume {
	edit(&v)
	return v
}

// pod uses claims.
func pod(namespace, name, node string, claims ...string) corev1.Pod {
	var p corev1.Pod
	p.Namespace, p.Name, p.Spec.NodeName = namespace, name, node
	for _, claim := range claims {
		var used corev1.Volume
		used.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
		p.Spec.Volumes = append(p.Spec.Volumes, used)
	}
	return p
}

func hostPath(v *corev1.PersistentVolume) {
	v.Spec.HostPath, v.Spec.Local = &corev1.HostPathVolumeSource{Path: v.Spec.Local.Path + "/"}, nil
}

func anywhere(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil }

func csi(v *corev1.PersistentVolume) {
	v.Spec.CSI, v.Spec.Local = &corev1.CSIPersistentVolumeSource{Driver: "disk.example"}, nil
}

func TestJudge(t *testing.T) {
	one, two := Host{Name: "one", Node: "one"}, Host{Name: "two", Node: "two"}
	gone := Host{Name: "gone", Node: "gone", Hostnames: []string{"gone.lan"}}
	seen := func(h Host, found ...Folder) Host {
		h.Seen, h.Found = true, found
		return h
	}
	withStray := func(h Host, paths ...string) Host {
		h.Seen, h.Stray = true, paths
		return h
	}
	data := func(edits ...func(*corev1.PersistentVolume)) corev1.PersistentVolume {
		v := local("shop", "data", "one.lan")
		for _, edit := range edits {
			edit(&v)
		}
		return v
	}
	type change = func(*corev1.PersistentVolume)
	phase := func(p corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy) change {
		return func(v *corev1.PersistentVolume) { v.Status.Phase, v.Spec.PersistentVolumeReclaimPolicy = p, policy }
	}
	const keeps, goes = corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete
	both := func(v *corev1.PersistentVolume) {
		bind(v, in(corev1.LabelHostname, "one.lan", "two.lan"))
	}
	byField := func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity.Required.NodeSelectorTerms = []corev1.NodeSelectorTerm{
			{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "one")}},
		}
	}
	inZone := func(v *corev1.PersistentVolume) {
		bind(v, in("zone", "z-one"))
	}
	onGone := func(v *corev1.PersistentVolume) {
		bind(v, in(corev1.LabelHostname, "gone.lan"))
	}
	unreadable := func(v *corev1.PersistentVolume) {
		bind(v, corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: "Resembles", Values: []string{"one.lan"}})
	}
	unclaimed := func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }
	scratch := func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Name = "p-scratch" }
	const claim = "claim shop/data"
	full, empty := Folder{Path: "/storage/pvc-data"}, Folder{Path: "/storage/pvc-data", Empty: true}
	tests := []struct {
		name    string
		volume  corev1.PersistentVolume
		pods    []corev1.Pod
		leaving []Host
		want    []string // host: use and name
	}{
		{"on the host", data(), nil, []Host{one}, []string{"one: " + claim}},
		{"on another host", data(), nil, []Host{two}, nil},
		{"of type hostPath", data(hostPath), nil, []Host{one}, []string{"one: " + claim}},
		{"the folder is empty", data(), nil, []Host{seen(one, empty)}, []string{"one: " + claim}},
		{"the folder is not there: a disk may not be mounted", data(), nil, []Host{seen(one)}, []string{"one: " + claim}},
		{"bound by the node's name", data(byField), nil, []Host{one, two}, []string{"one: " + claim}},
		{"bound by another label", data(inZone), nil, []Host{one, two}, []string{"one: " + claim}},
		{"bound in a way that is not known", data(unreadable), nil, []Host{one}, []string{"one: " + claim}},

		{"kept after its claim was deleted", data(phase(corev1.VolumeReleased, keeps)), nil, []Host{one},
			[]string{"one: volume without a claim shop/data"}},
		{"about to be deleted", data(phase(corev1.VolumeReleased, goes)), nil, []Host{one}, nil},
		{"could not be deleted", data(phase(corev1.VolumeFailed, goes)), nil, []Host{one}, nil},
		{"failed and kept", data(phase(corev1.VolumeFailed, keeps)), nil, []Host{one},
			[]string{"one: volume without a claim shop/data"}},
		{"not claimed yet", data(phase(corev1.VolumeAvailable, keeps), unclaimed), nil,
			[]Host{one}, []string{"one: volume without a claim /"}},

		{"on either of two, of which one stays", data(both), nil, []Host{one}, nil},
		{"on either of two that leave", data(both), nil, []Host{one, two}, []string{"one: " + claim, "two: " + claim}},
		{"on either of two, used on the one that leaves", data(both), []corev1.Pod{pod("shop", "p", "one", "data")},
			[]Host{one}, []string{"one: " + claim}},
		{"a folder of each host", data(hostPath, anywhere), nil, []Host{seen(one, full)}, []string{"one: " + claim}},
		{"a folder of each host, not of this one", data(hostPath, anywhere), nil, []Host{seen(one)}, nil},
		{"a folder of each host, empty on this one", data(hostPath, anywhere), nil, []Host{seen(one, empty)}, nil},
		{"a folder of each host, which is a network's", data(hostPath, anywhere), nil,
			[]Host{seen(one, Folder{Path: full.Path, Network: true})}, nil},
		{"a folder of each host, used on this one", data(hostPath, anywhere), []corev1.Pod{pod("shop", "p", "one", "data")},
			[]Host{one}, []string{"one: " + claim}},
		{"a folder of each host, used on another one", data(hostPath, anywhere),
			[]corev1.Pod{pod("shop", "p", "two", "data")}, []Host{one}, nil},
		{"bound to the host, on a network's file system", data(), nil,
			[]Host{seen(one, Folder{Path: full.Path, Network: true})}, nil},

		{"a disk of one host behind a driver", data(csi), nil, []Host{one}, []string{"one: " + claim}},
		{"a driver that reaches it from two", data(csi, both), nil, []Host{one}, nil},
		{"a driver that reaches it from everywhere", data(csi, anywhere), []corev1.Pod{pod("shop", "p", "one", "data")},
			[]Host{one, two}, nil},
		{"network storage", data(func(v *corev1.PersistentVolume) {
			v.Spec.NFS, v.Spec.Local = &corev1.NFSVolumeSource{Server: "nas", Path: "/data"}, nil
		}), []corev1.Pod{pod("shop", "p", "one", "data")}, []Host{one}, nil},

		{"the node was deleted before", data(onGone), nil, []Host{gone}, []string{"gone: " + claim}},
		{"the node was deleted, and the folder is there", data(onGone), nil, []Host{seen(gone, full)},
			[]string{"gone: " + claim}},
		{"the node was deleted, and the folder has gone", data(onGone), nil, []Host{seen(gone)}, nil},
		{"the node was deleted, and had another name", data(onGone), nil, []Host{{Name: "gone", Node: "former"}}, nil},
		{"the node was deleted, and its zone is not known", data(inZone), nil, []Host{{Name: "gone", Node: "gone"}}, nil},
		{"the node of a zone that has no other was deleted", edited(data(inZone), func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"z-gone"}
		}), nil, []Host{gone}, []string{"gone: " + claim}},

		{"the claim of an ephemeral volume", data(hostPath, anywhere, scratch),
			[]corev1.Pod{edit(pod("shop", "p", "one"), func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "scratch"}}
				p.Spec.Volumes[0].Ephemeral = &corev1.EphemeralVolumeSource{}
			})}, []Host{one}, []string{"one: claim shop/p-scratch"}},
		{"LiteBoxd's database", local("box", "box-data", "one.lan"), nil, []Host{one},
			[]string{"one: LiteBoxd's database box/box-data"}},
		{"LiteBoxd's database, kept", edited(local("box", "box-data", "one.lan"), phase(corev1.VolumeReleased, keeps)), nil,
			[]Host{one},
			[]string{"one: LiteBoxd's database box/box-data"}},
		{"a claim of that name in another namespace", local("shop", "box-data", "one.lan"), nil, []Host{one},
			[]string{"one: claim shop/box-data"}},
		{"a persistent sandbox", local("boxes", "sandbox-data-7f", "one.lan"), nil, []Host{one},
			[]string{"one: persistent sandbox 7f boxes/sandbox-data-7f"}},

		{"a folder that no volume names", data(), nil, []Host{withStray(two, "/storage/pvc-other")},
			[]string{"two: folder that no volume names /storage/pvc-other"}},
		{"folders that the host's volume names", data(), nil, []Host{withStray(one, "/storage/pvc-data", "/storage")},
			[]string{"one: " + claim}},
		{"a folder as the volume of another host names one", data(), nil, []Host{withStray(two, "/storage/pvc-data")},
			[]string{"two: folder that no volume names /storage/pvc-data"}},
		{"the folder of a volume that is about to be deleted", data(phase(corev1.VolumeReleased, goes)), nil,
			[]Host{withStray(one, "/storage/pvc-data")}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			facts := Facts{
				Nodes:   []corev1.Node{node("one"), node("two"), node("three")},
				Volumes: []corev1.PersistentVolume{test.volume}, Pods: test.pods,
				DatabaseClaim: "box-data", DatabaseNamespace: "box", SandboxClaims: "sandbox-data-", SandboxNamespace: "boxes",
			}
			var got []string
			for _, d := range Judge(facts, test.leaving) {
				what := fmt.Sprintf("%s %s", d.Use, d.Sandbox)
				if d.Use == Stray {
					what += d.Path
				} else {
					what = strings.TrimSpace(what) + " " + d.Namespace + "/" + d.Claim
				}
				got = append(got, d.Host+": "+what)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func edit(p corev1.Pod, change func(*corev1.Pod)) corev1.Pod {
	change(&p)
	return p
}

// What LiteBoxd's database was on before it was moved is told from the volume that it is on, and from one that is kept
// because its claim has gone.
func TestFormerDatabase(t *testing.T) {
	kept := edited(local("box", "box-data", "one.lan"), func(v *corev1.PersistentVolume) {
		v.Name, v.Status.Phase = "pvc-old", corev1.VolumeReleased
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	for _, test := range []struct {
		name   string
		others []corev1.PersistentVolume
		want   Use
	}{
		{"it is on another volume", []corev1.PersistentVolume{local("box", "box-data", "two.lan")}, Former},
		{"it is on no other", nil, Database},
		{"a claim of its name in another namespace", []corev1.PersistentVolume{local("shop", "box-data", "two.lan")}, Database},
		{"the other is none any more", []corev1.PersistentVolume{edited(local("box", "box-data", "two.lan"),
			func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeAvailable })}, Database},
	} {
		facts := Facts{Nodes: []corev1.Node{node("one"), node("two")}, Volumes: append(test.others, kept),
			DatabaseClaim: "box-data"}
		held := Judge(facts, []Host{{Name: "one", Node: "one"}})
		if len(held) != 1 || held[0].Use != test.want {
			t.Errorf("%s: %v, want %s", test.name, held, test.want)
		}
	}
}

// The most precious comes first, and each says what it is.
func TestHoldings(t *testing.T) {
	facts := Facts{
		Nodes: []corev1.Node{node("one"), node("two")},
		Volumes: []corev1.PersistentVolume{
			edited(local("shop", "kept", "one.lan"), func(v *corev1.PersistentVolume) {
				v.Status.Phase, v.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain
			}),
			edited(local("", "new", "one.lan"), func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }),
			local("shop", "data", "one.lan"),
			edited(local("boxes", "sandbox-data-7f", "one.lan"), csi),
			local("box", "box-data", "one.lan"),
			local("shop", "other", "two.lan"),
		},
		Pods: []corev1.Pod{
			pod("box", "web", "two"), pod("box", "gateway", "one", "box-data"), pod("box", "api", "one", "keys", "box-data"),
			pod("box", "gateway-2", "one", "box-data"), pod("box", "controller", "one", "box-data"),
			pod("shop", "box", "one", "box-data"),
		},
		DatabaseClaim: "box-data", SandboxClaims: "sandbox-data-",
	}
	host := Host{Name: "one (10.0.0.1)", Node: "one", Seen: true, Stray: []string{"/storage/pvc-1\x1b[2J"}}
	want := []string{
		"LiteBoxd's database (the claim box/box-data), up to 5.0 GiB, in /storage/pvc-box-data, " +
			"used by box/api, box/controller, box/gateway, others",
		"persistent sandbox 7f (the claim boxes/sandbox-data-7f), up to 5.0 GiB",
		"the claim shop/data, up to 5.0 GiB, in /storage/pvc-data",
		"the volume pvc-new, which nothing has claimed, up to 5.0 GiB, in /storage/pvc-new",
		"the volume pvc-kept, kept of the claim shop/kept, up to 5.0 GiB, in /storage/pvc-kept",
		"a folder that no volume names, in /storage/pvc-1�[2J",
	}
	var got []string
	for _, d := range Judge(facts, []Host{host}) {
		got = append(got, d.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	folders := []string{"/storage/pvc-kept", "/storage/pvc-new", "/storage/pvc-data", "/storage/pvc-box-data"}
	if diff := cmp.Diff(folders, Folders(facts, host)); diff != "" {
		t.Errorf("folders to look for: %s", diff)
	}
}
