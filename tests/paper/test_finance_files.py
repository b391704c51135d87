"""Files of returns and factors: what is read, and what is said about every bad one."""

import numpy as np
import pandas as pd
import pytest

from nghvi.data.frame import DataError
from nghvi.paper.finance import load_panel, read_factors
from nghvi.paper.finance.files import read_returns

THREE = """\
This file was created using the 202001 CRSP database.
The 1-month TBill return is from Ibbotson.

,Mkt-RF,SMB,HML,RF
200412,    3.43,   -0.10,   -0.20,    0.16
200501,   -2.76,   -1.72,    2.07,    0.16
200502,    1.89,   -0.57,    1.54,    0.16
200503,   -1.97,   -1.40, -999,    0.21

 Annual Factors: January-December
,Mkt-RF,SMB,HML,RF
  2004,   10.72,    4.57,    7.58,    1.20
  2005,    3.10,   -2.34,    9.37,    2.98

Copyright 2020 Kenneth R. French
"""
FIVE = """\
Five factors

,Mkt-RF,SMB,HML,RMW,CMA,RF
200412,    3.43,    0.05,   -0.25,   -1.00,    0.30,    0.16
200501,   -2.76,   -1.21,    2.01,    2.73,   -1.38,    0.16
200502,    1.89,   -0.30,    1.63,    1.47,   -0.04,    0.16
"""
CRSP = """\
PERMNO,date,RET,SICCD,DLRET
10001,20041231,0.010,4924,
10001,20050131,0.020,4924,
10001,20050228,-0.030,4925,
10002,20041231,C,6021,
10002,20050131,0.010,6021,
10002,20050228,0.010,6021,
10003,20041231,0.050,2834,
10003,20041231,0.050,2834,
10003,20050131,0.040,2834,
10003,20050228,0.100,2834,-0.5
10004,20050131,0.030,0,
10004,20050228,0.030,0,
10005,20041231,0.000,,
10005,20050131,0.000,,
10005,20050228,0.000,,
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "F-F_3.CSV").write_text(THREE)
    (tmp_path / "F-F_5.csv").write_text(FIVE)
    (tmp_path / "msf.csv").write_text(CRSP)
    (tmp_path / "notes.csv").write_text("ticker,name\nA,B\n")
    return tmp_path


def test_french_months_without_years_and_codes(folder):
    three = read_factors([folder / "F-F_3.CSV"])
    assert [str(m) for m in three.index] == ["2004-12", "2005-01", "2005-02", "2005-03"]
    assert set(three) == {"mkt_rf", "smb", "hml", "rf"}
    assert three.loc["2005-01", "mkt_rf"] == -2.76
    assert np.isnan(three.loc["2005-03", "hml"])
    both = read_factors([folder / "F-F_3.CSV", folder / "F-F_5.csv"])
    assert both.loc["2005-01", ["smb", "smb5", "rmw"]].tolist() == [-1.72, -1.21, 2.73]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",Mkt-RF,SMB,HML,RF", "Mkt-RF SMB HML RF", "begins with a comma"),
        ("200501,   -2.76,   -1.72,    2.07,    0.16", "200501, -2.76", "line 6: 1 values for 4"),
        ("-2.76", "x", "line 6, column 'mkt_rf': 'x' is not a number"),
        ("200502", "200504", "line 7: 2005-04 follows 2005-01"),
        ("200412", "20041231", "line 5: 20041231 is a day; get the monthly file"),
        ("200412", "200413", "line 5: '200413' is not a month"),
        ("200412", "none", "line 5: no month"),
    ],
)
def test_malformed_french_files_are_explained(tmp_path, old, new, said):
    path = tmp_path / "f.csv"
    path.write_text(THREE.replace(old, new))
    with pytest.raises(DataError, match=r"f\.csv") as error:
        read_factors([path])
    assert said in str(error.value)


def test_factor_files_must_agree_and_exist(folder):
    (folder / "F-F_5.csv").write_text(FIVE.replace("-2.76", "-2.00"))
    with pytest.raises(DataError, match=r"mkt_rf of 2005-01 .* one vintage"):
        read_factors([folder / "F-F_3.CSV", folder / "F-F_5.csv"])
    with pytest.raises(DataError, match="no such file"):
        read_factors([folder / "none.csv"])


def test_plain_factor_tables(tmp_path):
    path = tmp_path / "factors.csv"
    path.write_text("month,mkt_rf,smb\n2005-01,1.5,-99.99\n2005-02,2.5,\n")
    found = read_factors([path])
    assert found["mkt_rf"].tolist() == [1.5, 2.5]
    assert found["smb"].isna().all()
    path.write_text("month,mkt_rf\n2005-01,1.5\n2005-01,2.5\n")
    with pytest.raises(DataError, match="line 3: month 2005-01 occurs twice"):
        read_factors([path])
    path.write_text("month,mkt_rf\n2005-01,1.5\n2005-02,a\n")
    with pytest.raises(DataError, match="line 3, column 'mkt_rf': 'a' is not a number"):
        read_factors([path])


def test_crsp_extract(folder):
    found = read_returns(folder / "msf.csv")
    assert found.repeated == 1
    table = found.table.set_index(["firm", "month"])
    assert table.loc[("10001", "2005-02"), "ret"] == pytest.approx(-3.0)
    assert np.isnan(table.loc[("10002", "2004-12"), "ret"])
    assert table.loc[("10003", "2005-02"), "ret"] == pytest.approx(100 * (1.1 * 0.5 - 1))
    assert table.loc[("10001", "2005-02"), "sic"] == "4925"
    assert table.loc["10005", "sic"].isna().all()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.020,4924", "Q,4924", "line 3, column 'ret': 'Q' is not a number; CRSP writes A, B, C"),
        ("0.020,4924", "-2.0,4924", "line 3, column 'ret': a return of -200 %"),
        ("0.020,4924", "0.02,49AB", "line 3, column 'siccd': '49AB' is not a SIC code"),
        ("10001,20050131", "10001,Jan 05", "line 3, column 'date': 'Jan 05' is not a date"),
        ("10003,20041231,0.050,2834,\n10003", "10003,20041231,0.060,2834,\n10003", "lines 8 and 9"),
        ("SICCD", "HSIC", "column 'siccd' is missing"),
    ],
)
def test_malformed_crsp_extracts_are_explained(folder, old, new, said):
    path = folder / "msf.csv"
    path.write_text(CRSP.replace(old, new, 1))
    with pytest.raises(DataError, match=r"msf\.csv") as error:
        read_returns(path)
    assert said in str(error.value)


def test_codes_and_a_repetition_with_another_sic(tmp_path):
    path = tmp_path / "msf.csv"
    path.write_text("permno,date,ret,siccd\n1,2005-01-31,-99.0,100\n2,2005-01-31,0.1,100\n")
    assert read_returns(path).table["ret"].isna().tolist() == [True, False]
    path.write_text("permno,date,ret,siccd\n1,01/31/2005,0.1,100\n1,01/31/2005,0.1,200\n")
    found = read_returns(path)
    assert found.table["sic"].tolist() == ["0200"]
    assert found.repeated == 1


def test_a_panel_of_crsp_and_french(folder):
    panel = load_panel(folder, split="2005-02")
    assert panel.firms.index.tolist() == ["10001", "10003"]
    assert panel.firms.loc["10001", "sic"] == "4924"  # the change to 4925 is in the test data
    assert panel.dropped["reason"].to_dict() == {
        "10002": "a return is missing",
        "10004": "not listed throughout",
        "10005": "no SIC code",
    }
    assert "1 of 3 months" in panel.dropped.loc["10002", "detail"]
    train = panel.train
    assert len(train) == 4
    assert len(panel.test) == 2
    # Moments of the training data only, undone by percent().
    raw = panel.percent("ret", train.set_index(["firm", "month"])["ret"])
    assert raw[("10003", "2004-12")] == pytest.approx(5.0)
    np.testing.assert_allclose(panel.moments.loc["ret"], [3.0, np.std([1, 2, 5, 4], ddof=1)])
    np.testing.assert_allclose(train[["ret", "smb5"]].mean(), 0, atol=1e-12)
    np.testing.assert_allclose(train[["ret", "smb5"]].std(), 1)
    assert panel.percent("hml", panel.test["hml"]).tolist() == pytest.approx([1.54, 1.54])
    excess = load_panel(folder, split="2005-02", excess=True)
    assert excess.moments.loc["ret", "mean"] == pytest.approx(3.0 - 0.16)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"split": "2004-12"}, "split='2004-12': the returns run from 2004-12 to 2005-02"),
        ({"end": "2005-04"}, "factor 'mkt_rf' is missing in 2005-04, it ends in 2005-03"),
        ({"end": "2005-03"}, "factor 'hml' is missing in 2005-03, it ends in 2005-02"),
        ({"start": "2004-11"}, "'mkt_rf' is missing in 2004-11, it has a gap there"),
        ({"factors": "F-F_3.CSV"}, "no factor file has 'smb5'"),
    ],
)
def test_periods_that_the_files_do_not_cover(folder, arguments, said):
    if "factors" in arguments:
        arguments = {"factors": folder / arguments["factors"]}
    with pytest.raises(DataError) as error:
        load_panel(folder / "msf.csv", **{"split": "2005-02", **arguments})
    assert said in str(error.value)


def test_gaps_and_folders_without_returns(folder):
    lines = [line for line in CRSP.splitlines() if "20050131" not in line]
    (folder / "msf.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="no firm has a return in 2005-01"):
        load_panel(folder, split="2005-02")
    (folder / "msf.csv").write_text(CRSP.splitlines()[0] + "\n10002,20041231,C,6021,\n")
    with pytest.raises(DataError, match="between them"):
        load_panel(folder)
    (folder / "msf.csv").unlink()
    with pytest.raises(DataError, match="found none"):
        load_panel(folder)


def test_a_merged_panel_and_its_small_groups(folder):
    pytest.importorskip("pyarrow")
    months = ["2004-12", "2005-01", "2005-02"]
    sic = ["2834", "2834", "2835", "2836", "2911", "6021"]
    frame = pd.DataFrame(
        [(f"T{i}", s, m, float(i)) for i, s in enumerate(sic) for m in months],
        columns=["ticker", "sic", "month", "ret"],
    )
    frame["ret"] += np.arange(len(frame))
    (folder / "msf.csv").unlink()
    frame.astype({"sic": "category", "month": "category"}).to_parquet(folder / "panel.parquet")
    panel = load_panel(folder, split="2005-02", min_firms=2)
    assert panel.firms["group"].tolist() == ["2834", "2834", "283x", "283x", "xxxx", "xxxx"]
    assert panel.group_sizes().to_dict() == {"2834": 2, "283x": 2, "xxxx": 2}
    assert load_panel(folder, split="2005-02").firms["group"].tolist() == sic
    frame.to_csv(folder / "panel.csv", index=False)
    with pytest.raises(DataError, match=r"found panel\.csv, panel\.parquet"):
        load_panel(folder)
    same = load_panel(folder / "panel.csv", split="2005-02", min_firms=2)
    assert same.fingerprint() == panel.fingerprint()


def test_a_file_that_is_no_table(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match=r"x\.csv: cannot be read as a table"):
        read_returns(path)
