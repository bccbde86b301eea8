package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/diagnosis"
)

// Commands of boxlift that remedies name are commands, with flags that they have.
func TestRemediesAreCommands(t *testing.T) {
	quoted := regexp.MustCompile("`boxlift ([^`]+)`")
	found := 0
	for _, e := range diagnosis.Catalogue() {
		for _, step := range e.Remedy {
			for _, command := range quoted.FindAllStringSubmatch(step, -1) {
				found++
				if err := parse(strings.Fields(command[1])); err != nil {
					t.Errorf("%s: boxlift %s: %v", e.ID, command[1], err)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("%d commands were found", found)
	}
}
