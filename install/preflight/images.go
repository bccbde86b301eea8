package preflight

import (
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/node/lookup"
)

// ImageFault is an image that a host does not get.
type ImageFault struct {
	Image string
	// Answers are what the places have said where it was looked for, in the order in which nodes ask them.
	Answers []ImageAnswer
}

// ImageAnswer is what one of them has said.
type ImageAnswer struct {
	// Registry is its host, with its port if it has one; Place is the image's name there.
	Registry, Place string
	// Setting is where install.yaml says that nodes ask it.
	Setting string
	lookup.Answer
}

func judgeImages(j *judgement) {
	for _, f := range j.Images {
		var said, hints []string
		for _, a := range f.Answers {
			said = append(said, fmt.Sprintf("asked for %s, %s", a.Place, a.said()))
			hints = append(hints, a.hint(string(j.Platform)))
		}
		j.fail(fmt.Sprintf("the image %s is not in the bundle, and the host does not get it: %s", f.Image,
			strings.Join(said, "; ")),
			fmt.Sprintf("the image for %s, from where install.yaml says that nodes pull it, or in the bundle",
				j.Platform),
			strings.Join(hints, "; or "))
	}
}

// said tells what came back.
func (a ImageAnswer) said() string {
	if a.State == lookup.Unreached {
		return a.Registry + " gave no answer: " + a.Detail
	}
	return a.Registry + ": " + a.Detail
}

// hint says what to do about it.
func (a ImageAnswer) hint(platform string) string {
	switch a.State {
	case lookup.Absent:
		return fmt.Sprintf("push %s to %s, or correct the image's name or the rewrites in install.yaml", a.Place,
			a.Registry)
	case lookup.Denied:
		return fmt.Sprintf("correct the login for %s in %s of install.yaml, or let it pull %s there", a.Registry,
			a.Setting, a.Place)
	case lookup.OtherPlatform:
		return fmt.Sprintf("push %s for %s to %s", a.Place, platform, a.Registry)
	case lookup.Unreached:
		return fmt.Sprintf("see to it that the host reaches %s and trusts its certificate: `curl -v https://%s/v2/` on the "+
			"host; its authority belongs into %s", a.Registry, a.Registry, a.Setting)
	}
	return fmt.Sprintf("see to it that %s answers as a registry, or correct %s in install.yaml", a.Registry, a.Setting)
}
