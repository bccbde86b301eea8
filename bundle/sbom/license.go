package sbom

import (
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// spdx are identifiers of the SPDX list (https://spdx.org/licenses/) that software of
// images goes by. CycloneDX takes only these for identifiers; whatever else a package says
// is passed on as a name, in its own words.
var spdx = strings.Fields(`
0BSD AFL-2.1 AGPL-3.0-only AGPL-3.0-or-later Apache-1.1 Apache-2.0 Artistic-1.0 Artistic-1.0-Perl Artistic-2.0
BSD-1-Clause BSD-2-Clause BSD-2-Clause-Patent BSD-3-Clause BSD-4-Clause BSD-4-Clause-UC BSD-Source-Code BSL-1.0
BlueOak-1.0.0 CC-BY-3.0 CC-BY-4.0 CC-BY-SA-3.0 CC-BY-SA-4.0 CC0-1.0 CDDL-1.0 CDDL-1.1 EPL-1.0 EPL-2.0 EUPL-1.2 FSFAP
FSFUL FSFULLR FTL GFDL-1.2-or-later GFDL-1.3-or-later GPL-1.0-or-later GPL-2.0 GPL-2.0+ GPL-2.0-only GPL-2.0-or-later
GPL-3.0 GPL-3.0+ GPL-3.0-only GPL-3.0-or-later HPND ICU IJG ISC JSON LGPL-2.0-only LGPL-2.0-or-later LGPL-2.1 LGPL-2.1+
LGPL-2.1-only LGPL-2.1-or-later LGPL-3.0 LGPL-3.0+ LGPL-3.0-only LGPL-3.0-or-later LPPL-1.3c Libpng MIT MIT-0 MPL-1.1
MPL-2.0 MS-PL NCSA NTP OFL-1.1 OLDAP-2.8 OpenSSL PHP-3.01 PSF-2.0 PostgreSQL Python-2.0 Ruby SSPL-1.0
Sleepycat TCL TCP-wrappers UPL-1.0 Unicode-DFS-2016 Unlicense Vim W3C WTFPL X11 ZPL-2.1 Zlib blessing
bzip2-1.0.6 curl zlib-acknowledgement`)

// exceptions are SPDX identifiers that follow WITH.
var exceptions = strings.Fields(`
Autoconf-exception-2.0 Autoconf-exception-3.0 Bison-exception-2.2 Classpath-exception-2.0 GCC-exception-2.0
GCC-exception-3.1 LLVM-exception Libtool-exception Linux-syscall-note u-boot-exception-2.0`)

// licenses turns what a package says of its licence into one of the three forms that
// CycloneDX has: an identifier, an expression of identifiers, or a name.
func licenses(stated string) *cdx.Licenses {
	stated = strings.TrimSpace(stated)
	switch {
	case stated == "":
		return nil
	case slices.Contains(spdx, stated):
		return &cdx.Licenses{{License: &cdx.License{ID: stated}}}
	case isExpression(stated):
		return &cdx.Licenses{{Expression: stated}}
	}
	return &cdx.Licenses{{License: &cdx.License{Name: stated}}}
}

// isExpression reports whether a text is an SPDX license expression (SPDX 3.0, annex
// "SPDX license expressions") of known identifiers.
func isExpression(text string) bool {
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(text))
	open, operand := 0, false // whether an operand stands to the left
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "(" && !operand:
			open++
		case word == ")" && operand && open > 0:
			open--
		case (word == "AND" || word == "OR") && operand:
			operand = false
		case word == "WITH" && operand && i+1 < len(words) && slices.Contains(spdx, words[i-1]) &&
			slices.Contains(exceptions, words[i+1]):
			i++
		case !operand && slices.Contains(spdx, word):
			operand = true
		default:
			return false
		}
	}
	return operand && open == 0
}
